{{- define "mergerouter.name" -}}
{{- if contains "mergerouter" .Release.Name }}{{ .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else }}{{ printf "%s-mergerouter" .Release.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "mergerouter.selector" -}}
app.kubernetes.io/name: mergerouter
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "mergerouter.labels" -}}
{{ include "mergerouter.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* The configuration file: the settings of the values, and what follows from the rest of the values. */}}
{{- define "mergerouter.settings" -}}
{{- $settings := deepCopy .Values.settings }}
{{- if not (dig "sharding" "configDB" "" $settings) }}
{{- if not (dig "replication" "replicaSet" "" $settings) }}
{{- fail "set settings.sharding.configDB to the cluster's config server, or settings.replication.replicaSet to a replica set: rsName/host:port[,host:port]" }}
{{- end }}
{{- $settings = omit $settings "sharding" }}
{{- end }}
{{- if not .Values.adminToken.secret }}
{{- fail "set adminToken.secret to the name of a Secret: its key holds the token that clients of the admin port send" }}
{{- end }}
{{- $admin := dict "port" (int .Values.ports.admin) "bindIp" "0.0.0.0" "tokenFile" "/var/run/secrets/mergerouter/token" }}
{{- $net := dict "port" (int .Values.ports.drivers) "admin" $admin }}
{{- $net = merge $net (eq .Values.mode "deployment" | ternary (dict "bindIpAll" true) (dict "bindIp" "127.0.0.1")) }}
{{- if .Values.tls.secret }}
{{- $folder := "/var/run/secrets/mergerouter-tls" }}
{{- $_ := set $net "tls" (dict "mode" .Values.tls.mode "certificateKeyFile" (printf "%s/router.pem" $folder) "CAFile" (printf "%s/ca.pem" $folder)) }}
{{- end }}
{{- $computed := dict "net" $net }}
{{- if .Values.keyFile.secret }}
{{- $_ := set $computed "security" (dict "keyFile" "/var/run/mergerouter/key") }}
{{- end }}
{{- if not $settings.upstream }}{{- $settings = omit $settings "upstream" }}{{- end }}
{{- toYaml (mustMergeOverwrite $settings $computed) }}
{{- end }}

{{/* HTTP or HTTPS: how probes and Prometheus reach the admin port. */}}
{{- define "mergerouter.adminScheme" -}}
{{- $mode := ne .Values.tls.secret "" | ternary .Values.tls.mode "disabled" }}
{{- dig "net" "admin" "tlsMode" $mode .Values.settings | eq "disabled" | ternary "HTTP" "HTTPS" }}
{{- end }}

{{/* A container's key file may be readable by its user alone, which a volume of a Secret cannot promise. */}}
{{- define "mergerouter.initContainers" -}}
{{- if .Values.keyFile.secret -}}
- name: mergerouter-key
  image: {{ include "mergerouter.image" . }}
  command: [install, -m, "400", /var/run/secrets/mergerouter-key/key, /var/run/mergerouter/key]
  securityContext: {{- include "mergerouter.securityContext" . | nindent 4 }}
  resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 64Mi}}
  volumeMounts:
    - {name: mergerouter-key-secret, mountPath: /var/run/secrets/mergerouter-key, readOnly: true}
    - {name: mergerouter-key, mountPath: /var/run/mergerouter}
{{- end }}
{{- end }}

{{- define "mergerouter.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ printf "%s@%s" .repository .digest }}
{{- else }}{{ printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) }}{{ end }}
{{- end }}
{{- end }}

{{- define "mergerouter.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "mergerouter.container" -}}
- name: mergerouter
  image: {{ include "mergerouter.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: [serve, --config, /etc/mergerouter/mergerouter.yaml]
  {{- if or .Values.env .Values.password.secret }}
  env:
    {{- with .Values.env }}{{ toYaml . | nindent 4 }}{{ end }}
    {{- with .Values.password }}{{ if .secret }}
    - name: MERGEROUTER_SECURITY__PASSWORD
      valueFrom: {secretKeyRef: {name: {{ .secret }}, key: {{ .key }}}}
    {{- end }}{{ end }}
  {{- end }}
  ports:
    {{- if eq .Values.mode "deployment" }}
    - {name: mongodb, containerPort: {{ .Values.ports.drivers }}}
    {{- end }}
    - {name: router-admin, containerPort: {{ .Values.ports.admin }}}
  startupProbe:
    httpGet: {path: /healthz, port: router-admin, scheme: {{ include "mergerouter.adminScheme" . }}}
    failureThreshold: 30
    periodSeconds: 1
  livenessProbe:
    httpGet: {path: /healthz, port: router-admin, scheme: {{ include "mergerouter.adminScheme" . }}}
    periodSeconds: 10
    timeoutSeconds: 3
  readinessProbe:
    httpGet: {path: "/readyz?shards=optional", port: router-admin, scheme: {{ include "mergerouter.adminScheme" . }}}
    periodSeconds: 5
    timeoutSeconds: 4
  resources: {{- toYaml .Values.resources | nindent 4 }}
  securityContext: {{- include "mergerouter.securityContext" . | nindent 4 }}
  volumeMounts:
    - {name: mergerouter-config, mountPath: /etc/mergerouter, readOnly: true}
    - {name: mergerouter-token, mountPath: /var/run/secrets/mergerouter, readOnly: true}
    - {name: mergerouter-tmp, mountPath: /tmp}
    {{- if .Values.keyFile.secret }}
    - {name: mergerouter-key, mountPath: /var/run/mergerouter, readOnly: true}
    {{- end }}
    {{- if .Values.tls.secret }}
    - {name: mergerouter-tls, mountPath: /var/run/secrets/mergerouter-tls, readOnly: true}
    {{- end }}
{{- end }}

{{- define "mergerouter.volumes" -}}
- name: mergerouter-config
  configMap: {name: {{ include "mergerouter.name" . }}}
- name: mergerouter-token
  secret:
    secretName: {{ .Values.adminToken.secret }}
    items: [{key: {{ .Values.adminToken.key }}, path: token}]
- name: mergerouter-tmp
  emptyDir: {medium: Memory, sizeLimit: 16Mi}
{{- with .Values.tls }}{{ if .secret }}
- name: mergerouter-tls
  secret:
    secretName: {{ .secret }}
    items: [{key: {{ .certificateKey }}, path: router.pem}, {key: {{ .ca }}, path: ca.pem}]
{{- end }}{{ end }}
{{- if .Values.keyFile.secret }}
- name: mergerouter-key
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
- name: mergerouter-key-secret
  secret:
    secretName: {{ .Values.keyFile.secret }}
    items: [{key: {{ .Values.keyFile.key }}, path: key}]
{{- end }}
{{- end }}
