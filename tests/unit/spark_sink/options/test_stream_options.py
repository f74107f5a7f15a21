"""Options, offsets and tokens; Java's patterns."""

import json
import re
from pathlib import Path
from typing import Any

import pyspark
import pytest
from bson.timestamp import Timestamp

from shard_client.bson.resume_token import high_water_mark
from spark_sink.errors import OptionError, StreamError
from spark_sink.events.positions import AtTime, FromNow, Token, position_document, position_from
from spark_sink.options.java_patterns import compiled, translation
from spark_sink.options.scope import Scope, namespace_options
from spark_sink.options.stream_options import parse_options
from spark_sink.snapshot.queue import SnapshotQueue, SnapshotRequest
from spark_sink.snapshot.selections import CollectionPatterns
from spark_sink.source.data_source import MergerouterDataSource
from spark_sink.source.offsets import Offset
from spark_sink.source.schema import schema_for
from spark_sink.tables.table_state import Batch
from tests.doubles.event_history import event_token

URI = "mongodb://app:secret@127.0.0.1:27020"
TOKEN = event_token(1_700_000_000, 7, "2B02")


def test_names_are_not_case_sensitive():
    options = parse_options(
        {"URI": URI, "Database": "shop", "collection": "orders", "MAXEVENTSPERTRIGGER": "5"}
    )
    assert options.scope == Scope("shop", ("orders",))
    assert options.max_events_per_trigger == 5


def test_the_uri_can_be_in_a_file(tmp_path):
    file = tmp_path / "uri"
    file.write_text(f"{URI}\n")
    assert parse_options({"uriFile": str(file)}).uri == URI
    with pytest.raises(OptionError, match="'uri' is required"):
        parse_options({})
    with pytest.raises(OptionError, match="'uri' and 'uriFile' exclude each other"):
        parse_options({"uriFile": str(file), "uri": URI})
    with pytest.raises(OptionError, match=r"'uriFile': cannot read .*absent"):
        parse_options({"uriFile": str(tmp_path / "absent")})


@pytest.mark.parametrize(
    ("uri", "options", "scope"),
    [
        (URI, {"database": "shop", "collection": "a,b"}, Scope("shop", ("a", "b"))),
        (URI, {"database": "shop", "collection": "b, a, b"}, Scope("shop", ("a", "b"))),
        (f"{URI}/shop", {}, Scope("shop")),
        (f"{URI}/shop.orders.open", {}, Scope("shop", ("orders.open",))),
        (f"{URI}/shop", {"collection": "orders"}, Scope("shop", ("orders",))),
        (f"{URI}/users", {"database": "shop"}, Scope("shop")),
        (f"{URI}/admin?directConnection=true", {}, Scope()),
        (f"{URI}/?directConnection=true", {}, Scope()),
    ],
)
def test_options_and_uri_define_the_scope(uri, options, scope):
    assert parse_options({"uri": uri, **options}).scope == scope


@pytest.mark.parametrize(
    ("given", "accepted"),
    [
        ({"database.include.list": "shop,st.*"}, {"shop.a", "shop.ab", "stock.a"}),
        ({"database.exclude.list": "st.*"}, {"shop.a", "shop.ab", "other.a"}),
        ({"collection.include.list": r"shop\.a, stock\..*"}, {"shop.a", "stock.a"}),
        ({"collection.exclude.list": r".*\.a"}, {"shop.ab"}),
        ({"collection.include.list": r"SHOP\.A, stock\.\p{Lower}"}, {"shop.a", "stock.a"}),
        ({"collection.include.list": r"shop\.a{1\,3},x"}, {"shop.a"}),
        ({"collection.include.list": "shop.a", "filters.match.mode": "literal"}, {"shop.a"}),
        ({"collection.include.list": ".*a", "filters.match.mode": "literal"}, set()),
        ({"collection.include.list": "Shop.a", "filters.match.mode": "literal"}, set()),
        ({"database": "shop", "collection.exclude.list": "shop.a"}, {"shop.ab"}),
        (
            {"database.exclude.list": "x", "snapshot.include.collection.list": r"SHOP\.A,st.*"},
            {"shop.a", "stock.a"},
        ),
    ],
)
def test_debeziums_lists_choose_namespaces(given, accepted):
    found = parse_options({"mongodb.connection.string": URI, **given})
    scope = found.scope
    names = ["shop.a", "shop.ab", "stock.a", "other.a"]
    if scope.database is not None:
        names = [name for name in names if name.startswith(f"{scope.database}.")]
    read = CollectionPatterns(found.snapshot.collections)
    assert {
        each for each in names if scope.accepts(*each.split(".")) and read.wants(each)
    } == accepted
    offset = Offset.of(json.loads(json.dumps(Offset(FromNow(), scope).document)))
    assert offset == Offset(FromNow(), scope)
    offset.require_scope(scope)


def test_signals_come_from_a_collection_and_a_folder():
    options = parse_options(
        {"uri": URI, "signal.data.collection": "ops.a.b", "signalFolder": "x", "startAfter": TOKEN}
    )
    assert options.signal_collection == ("ops", "a.b")
    assert options.signal_folder == "x"
    named = parse_options({"uri": URI, "incremental.snapshot.chunk.size": "1024"})
    assert named.snapshot.chunk_rows == 1024
    assert named.signal_collection is None


SPLIT: dict[str, Any] = {"$changeStreamSplitLargeEvent": {}}


@pytest.mark.parametrize(
    ("pipeline", "mode", "expected"),
    [
        ("[]", "split", (SPLIT,)),
        ('[{"$match": {}}]', "split", ({"$match": {}}, SPLIT)),
        (json.dumps([SPLIT]), "split", (SPLIT,)),
        ("[]", "fail", ()),
    ],
)
def test_large_events_are_split_on_request(pipeline, mode, expected):
    options = parse_options(
        {"uri": URI, "pipeline": pipeline, "cursor.oversize.handling.mode": mode}
    )
    assert options.pipeline == expected
    assert options.splits_large_events is (mode == "split")


@pytest.mark.parametrize(("text", "size"), [("100", 100), ("64m", 64 << 20), ("1GB", 1 << 30)])
def test_sizes_are_parsed(text, size):
    assert parse_options({"uri": URI, "maxBytesPerTrigger": text}).max_bytes_per_trigger == size


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("1700000000", Timestamp(1_700_000_000, 0)),
        ("1700000000,3", Timestamp(1_700_000_000, 3)),
        ('{"$timestamp": {"t": 1700000000, "i": 3}}', Timestamp(1_700_000_000, 3)),
        ("2023-11-14T22:13:20Z", Timestamp(1_700_000_000, 0)),
    ],
)
def test_start_at_operation_time_is_parsed(text, time):
    assert parse_options({"uri": URI, "startAtOperationTime": text}).start == AtTime(time)


@pytest.mark.parametrize("text", [TOKEN, f'{{"_data": "{TOKEN}"}}'])
@pytest.mark.parametrize("name", ["resumeAfter", "startAfter"])
def test_a_token_to_start_after_is_parsed(name, text):
    assert parse_options({"uri": URI, name: text}).start == Token({"_data": TOKEN})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"uri": "127.0.0.1:27020"}, "'uri': must begin with mongodb://"),
        ({"fullDocuments": "default"}, "did you mean 'fullDocument'"),
        ({"path": "x"}, "unknown option 'path'; docs/spark-reference.md and docs/debezium.md list"),
        ({"database": ""}, "'database': must not be empty"),
        ({"database": "shop,crm"}, "'shop,crm' is not the name of a database"),
        ({"database": "shop", "collection": "ord.*"}, "looks like a pattern"),
        ({"database": "shop", "collection": "a,,b"}, "between commas"),
        ({"pipeline": '{"$match": {}}'}, "'pipeline': must be a JSON array"),
        ({"pipeline": '[{"$changeStream": {}}]'}, "must not contain .changeStream"),
        ({"showExpandedEvents": "yes"}, "must be true or false, not 'yes'"),
        ({"maxEventsPerTrigger": "0"}, "positive whole number, not '0'"),
        ({"resumeAfter": "8265"}, "'resumeAfter': not a resume token"),
        ({"startAtOperationTime": "2023-11-14T22:13:20"}, "name its time zone"),
        ({"startAtOperationTime": "yesterday"}, "a time such as 2026-01.*'yesterday'"),
        ({"jsonFormat": "bson"}, "relaxed or canonical, not 'bson'"),
        ({"heartbeat.interval.ms": "1s"}, "a number of milliseconds, not '1s'"),
        ({"cursor.oversize.handling.mode": "skip"}, "and vice versa"),
        ({"cursor.oversize.skip.threshold": "99"}, "and vice versa"),
        (
            {
                "cursor.oversize.handling.mode": "skip",
                "cursor.oversize.skip.threshold": "99",
                "fullDocument": "updateLookup",
            },
            "'cursor.oversize.handling.mode': with fullDocument=updateLookup",
        ),
        ({"documents": "typed"}, "typed requires option 'documentSchema'"),
        ({"documentSchema": "n INT"}, "'documentSchema' is for documents=typed"),
        (
            {"documents": "typed", "documentSchema": "n INT, total STRNG"},
            "'documentSchema': 'STRNG', the type of 'total', is no type of Spark",
        ),
        ({"maxBytesPerTrigger": "much"}, "a number of bytes such as 64m"),
        *(
            ({"fullDocument": "updateLookup", "pipeline": json.dumps(stages)}, "not be repeated")
            for stages in (
                [{"$match": {"fullDocument.state": "paid"}}],
                [{"$match": {"$expr": {"$eq": ["$$CURRENT.fullDocument.state", "paid"]}}}],
                [{"$match": {"$expr": {"$gt": [{"$bsonSize": "$$ROOT"}, 5]}}}],
                [{"$addFields": {"t": "$fullDocument.state"}}, {"$match": {"t": "paid"}}],
                [{"$replaceWith": {"all": "$$ROOT"}}, {"$unset": "x"}, {"$match": {"all.x": 1}}],
            )
        ),
        ({"pipeline": '[{"$match": {"n": {"$numberDecimal": "x"}}}]'}, "'pipeline': not extended"),
        ({"pipeline": "[" * 200 + "]" * 200}, "more than 100 levels"),
        ({"pipeline": "[" * 9_000 + "]" * 9_000}, "not extended JSON"),
        ({"startAfter": '{"$date": 5}'}, "'startAfter': not a resume token"),
        ({"startAtOperationTime": '{"$timestamp": 5}'}, "'startAtOperationTime': not extended"),
        ({"database.include.list": "a", "database.exclude.list": "b"}, "only one of an include"),
        ({"collection.include.list": "("}, "is not a regular expression"),
        ({"database.include.list": "[a&&b]"}, "intersection of classes"),
        ({"filters.match.mode": "glob"}, "must be regex or literal"),
        ({"skipped.operations": "c,x"}, "must be of c, u, d, t and none"),
        ({"cursor.pipeline": "[]", "pipeline": "[]"}, "are aliases"),
        ({"snapshotMode": "initial", "pipeline": '[{"$match": {}}]'}, "snapshotFilters"),
        ({"snapshotMode": "initial", "startAtOperationTime": "5"}, "a snapshot fixes"),
        ({"signalCollection": "signals"}, "must be a database and a collection"),
        ({"signalFolder": "x", "snapshotMode": "initial_only"}, "are for streams"),
    ],
)
def test_messages_describe_bad_options(options, message):
    with pytest.raises(OptionError, match=message) as caught:
        parse_options({"uri": URI, **options})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "pipeline",
    [
        '[{"$match": {"fullDocumentBeforeChange.state": "paid"}}]',
        '[{"$unset": "fullDocument.picture"}]',
        '[{"$project": {"fullDocument": 1, "ns": 1}}, {"$match": {"ns.coll": "orders"}}]',
    ],
)
def test_repeatable_pipelines_are_allowed_with_update_lookup(pipeline):
    parse_options({"uri": URI, "fullDocument": "updateLookup", "pipeline": pipeline})


@pytest.mark.parametrize(
    "position",
    [
        FromNow(),
        AtTime(Timestamp(1_700_000_000, 3)),
        Token({"_data": TOKEN}),
        Token({"_data": TOKEN, "_typeBits": b"\x82\x01"}),
    ],
)
def test_offsets_keep_positions(position):
    assert position_from(position_document(position)) == position


@pytest.mark.parametrize("scope", [Scope(), Scope("shop"), Scope("shop", ("a", "b"))])
def test_an_offset_of_another_scope_is_refused(scope):
    position = AtTime(Timestamp(1_700_000_000, 3))
    offset = Offset.of(json.loads(json.dumps(Offset(position, scope).document)))
    assert offset.position == position
    with pytest.raises(StreamError, match=r"^the checkpoint is of another scope") as caught:
        offset.require_scope(Scope("shop", ("a",)))
    assert "startAtOperationTime=1700000000,3" in str(caught.value)


def test_an_offset_of_another_source_is_refused():
    with pytest.raises(StreamError, match="checkpointLocation"):
        Offset.of({"files": 3})
    with pytest.raises(StreamError, match=r"the state of a table has no offset .*from a backup"):
        assert Batch("q", 1, {"files": 3}).end


@pytest.mark.parametrize("path", [(), ("snapshots",), ("snapshots", "requests", 0)])
def test_an_offset_of_a_newer_version_is_refused(path: tuple[str | int, ...]) -> None:
    request = SnapshotRequest("a", "incremental", CollectionPatterns(("shop.orders",)))
    document = Offset(FromNow(), snapshots=SnapshotQueue(requests=(request,))).document
    assert Offset.of(document).snapshots.requests == (request,)
    part: Any = document
    for name in path:
        part = part[name]
    part["seenBy"] = "1"
    with pytest.raises(StreamError, match=r"newer version .* field 'seenBy': run"):
        Offset.of(document)


def test_long_messages_are_cut_after_the_cause():
    error = StreamError("the cause: the remedy", "x" * 9000)
    assert len(str(error)) == 500
    assert str(error).startswith("the cause: the remedy (xxx")


@pytest.mark.parametrize("offset", [{}, {"_data": "xyz"}, {"startAtOperationTime": 5}, {"a": 1}])
def test_other_offsets_are_refused(offset):
    with pytest.raises(ValueError, match="not a"):
        position_from(offset)


def test_tokens_show_their_kind_and_time():
    time = Timestamp(1_700_000_000, 7)
    event, mark = Token({"_data": TOKEN}), Token({"_data": high_water_mark(time)})
    assert (event.is_high_water_mark, mark.is_high_water_mark) == (False, True)
    assert event.cluster_time == mark.cluster_time == time
    assert mark.data < event.data


@pytest.mark.parametrize("version", ["4.0.5", "4.1.4"])
def test_an_old_spark_is_refused_where_spark_reports_it(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    source, schema = MergerouterDataSource({"uri": URI}), schema_for(parse_options({"uri": URI}))
    reader = source.streamReader(schema)
    told = rf"^streams require Spark 4\.2 or newer.*is Spark {version}"
    for ask in (reader.initialOffset, reader.latestOffset):
        with pytest.raises(OptionError, match=told):
            ask()
    if version < "4.1":
        for make in (source.writer, source.streamWriter):
            with pytest.raises(OptionError, match="writing requires Spark"):
                make(schema, False)


def test_documented_defaults_are_accepted_and_change_nothing() -> None:
    page = Path(__file__).parents[4] / "docs" / "spark-reference.md"
    section = page.read_text().split("\n## Options\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", section, re.MULTILINE)
    defaults = {
        name: text.split(":")[0]
        for names, texts in rows
        for name, text in zip(re.findall("`(.*?)`", names), texts.split(", ") * 9, strict=False)
        if re.fullmatch(r"\w+(: .*)?", text) and text not in ("required", "now")
        if "…" not in name and "selection" not in name  # a prefix; the default ends sooner
    }
    assert len(defaults) >= 20
    needed = {"unknownFields": {"documents": "typed", "documentSchema": "a INT"}}
    for name, text in defaults.items():
        beside = {"uri": URI, **needed.get(name, {})}
        assert parse_options({**beside, name: text}) == parse_options(beside), name


@pytest.mark.parametrize(
    ("pattern", "matched", "refused"),
    [
        (r"shop\.orders", ["shop.orders", "SHOP.Orders"], ["shopXorders", "shop.orders2"]),
        (r"\Qa.b*\E\d+", ["a.b*12", "A.B*1"], ["axb*1", r"\Qa.b*\E1"]),
        (r"\Qa.b", ["a.b"], ["axb"]),
        (r"\p{Alpha}+", ["abC"], ["a1", "ä"]),
        (r"[\p{Digit}_]+", ["1_2"], ["a"]),
        (r"\P{Digit}", ["a"], ["1"]),
        (r"(?<name>a|b)c", ["ac", "bc"], ["c"]),
        (r"a\u0062\x63", ["abc"], ["a"]),
        (r"\uD83D\uDE00", ["\U0001f600"], ["a"]),
        (r"(?<=x)?a++[]]?", ["aa", "a]"], ["b"]),
        (r"\w+", ["abc_1"], ["é"]),
        (r"[(&]x\(", ["(x(", "&x("], ["x("]),
        (r"(?i)a(?-i:b)", ["ab", "Ab"], ["aB"]),
    ],
)
def test_a_pattern_matches_what_java_s_matches(
    pattern: str, matched: list[str], refused: list[str]
) -> None:
    names = [*matched, *refused]
    assert [name for name in names if compiled(pattern).fullmatch(name)] == matched


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("[a-z&&[^b]]", "intersection of classes"), ("[a[b]]", "class within a class"),
        ("a{,2}", "{,"), ("(?x)a", "the flags x"),
        (r"\p{L}", r"\\p{L}"), (r"[\P{Digit}]", r"\\P{Digit}"), (r"\h", r"\\h"), (r"(a)\1", r"\\1"),
        (r"(?<n>a)\k<n>", r"\\k"), (r"\z", r"\\z"), ("(?u)a", "flags u"),
        ("a\\", "backslash at the end"), ("(", "not a regular expression"),
        ("a{99999999999}", "not a regular expression"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_refused_by_its_name(pattern: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        compiled(pattern)


def test_the_translation_is_of_pcre_too() -> None:
    assert translation(r"(?<a>\Qx.\E)\p{Lower}\u00e9") == r"(?:x\.)[a-z]é"


def test_a_snapshot_reads_those_collections_whose_events_the_servers_send() -> None:
    scope = parse_options({"uri": URI, "collection.include.list": r"shop.a+b,shop\.c"}).scope
    [stage] = scope.stages
    sent = stage["$match"]["$or"][0]["$expr"]["$regexMatch"]["regex"]
    for name in ("ab", "AAB", "a+b", "c", "c\n"):
        assert scope.accepts("shop", name) == bool(re.search(sent, f"shop.{name}", re.I)), name


def test_namespaces_become_options() -> None:
    assert namespace_options([]) == {}
    assert namespace_options(["shop"]) == {"database": "shop"}
    assert namespace_options(["shop,1"]) == {"database": "shop,1"}
    assert namespace_options(["shop.a", "shop.b.c"]) == {"database": "shop", "collection": "a,b.c"}
    assert namespace_options(["shop.a", "crm.b"]) == {
        "collection.include.list": "shop.a,crm.b",
        "filters.match.mode": "literal",
    }
    with pytest.raises(OptionError, match="cannot be mixed"):
        namespace_options(["shop", "crm.b"])
    for names in (["shop.a,b"], ["shop.a,shop.b", "crm.b"]):
        with pytest.raises(OptionError, match=r"'shop.a,.*' has a comma"):
            namespace_options(names)
