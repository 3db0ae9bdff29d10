# SPDX-License-Identifier: Apache-2.0
"""What others do to an OpenSearch: blocks, closed indexes, documents, templates, aliases, and servers that are none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opensearchpy import OpenSearch
from opensearchpy.exceptions import NotFoundError, TransportError

from forebay.errors import ConfigurationError, DataError, RetriableError
from forebay.index import Datasource, ObjectType, OpenSearchIndex, OpenSearchObjects, Property
from forebay.retry import RetryPolicy
from forebay.table.index.opensearch_documents import FORMAT, Documents, id_of

ROWS = [{"id": number, "name": f"name {number}"} for number in range(3)]
ONCE = RetryPolicy(retries=1, first_pause=0.01)


class Followed:
    """An object type that OpenSearch follows under a name of its own."""

    def __init__(self, objects: Any, url: str, name: str) -> None:
        self.objects, self.url, self.name = objects, url, name
        self.client = OpenSearch(hosts=[url])

    def follower(self, **options: Any) -> OpenSearchIndex:
        settings = {"number_of_shards": 2, "number_of_replicas": 0}
        options = {"hosts": self.url, "name": self.name, "settings": settings, "retry": ONCE} | options
        return OpenSearchIndex(self.objects.location, self.objects.definition.name, **options)

    def reader(self, **options: Any) -> OpenSearchObjects:
        options = {"hosts": self.url, "name": self.name, "retry": ONCE} | options
        return OpenSearchObjects(object_type=self.objects.definition.name, **options)

    def index(self) -> str:
        (name,) = self.client.indices.get_alias(name=self.name)
        return str(name)

    def write(self, key: int, document: dict[str, Any], **options: Any) -> None:
        """Write a document as someone else does."""
        identity = id_of(self.objects.definition.codec.encode((key,)))
        self.client.index(index=self.index(), id=identity, body=document, params={"refresh": "true", **options})


@pytest.fixture
def followed(objects, opensearch, request):
    name = "hostile-" + "".join(each for each in request.node.name.lower() if each.isalnum())[-60:]
    objects.commit("a", ROWS)
    return Followed(objects, opensearch.url, name)


@contextmanager
def web_server(kind: str, body: bytes, code: int = 200) -> Iterator[str]:
    """A server that is no OpenSearch: it answers everything with one text."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - names of the library

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    with served(Handler) as url:
        yield url


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Answer requests by a handler; give the URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("kind", "body", "code"),
    [
        ("text/html", b"<html>busy</html>", 200), ("text/plain", b"hello", 200), ("application/json", b"[]", 200),
        ("application/json", b"{", 200), ("application/json", b"{}", 200), ("application/json", b'{"a": 1}', 200),
    ],
)  # fmt: skip
def test_a_server_that_is_not_opensearch_is_said_to_be_none(followed, kind, body, code):
    with web_server(kind, body, code) as url:
        for ask in (followed.follower(hosts=url).catch_up, lambda: followed.reader(hosts=url)):
            with pytest.raises(
                RetriableError, match=r"what answers is not OpenSearch[\s\S]*hosts[\s\S]*correct the URL"
            ):
                ask()


def test_a_server_without_indexes_is_not_opensearch(followed):
    with (
        web_server("text/html", b"<html>", 404) as url,
        pytest.raises(RetriableError, match="what answers is not OpenSearch"),
    ):
        followed.follower(hosts=url).catch_up()


@pytest.mark.parametrize(
    "hosts",
    [
        "", [], None, 5, "http://", "objects", "localhost:abc", "http://[::1", "ftp://x", "http://user@x:1",
        "http://user:s3cret@x:99999", "http://user:s3cret@x y:1", "http://user:s3c\U0001f600ret@x:1",
        "http://user:s3cr/et@x:1", "http://user:s3c#ret@x:1", {"host": "x"},
        ["http://x", "http://user:s3cret@x:1x"], b"x",
    ],
)  # fmt: skip
def test_hosts_that_are_no_urls_are_refused_without_what_they_hold(followed, hosts):
    for make in (followed.follower, followed.reader):
        with pytest.raises(ConfigurationError, match=r"no URLs[\s\S]*write http://host:9200") as refused:
            make(hosts=hosts)
        assert "s3c" not in str(refused.value) and refused.value.__context__ is None


def test_a_server_without_tls_is_told_from_one_that_is_down(followed):
    for url, advice in ((followed.url.replace("http:", "https:"), "begin the URL with http://"),
                        ("http://127.0.0.1:9", "start it, or correct its URL")):  # fmt: skip
        with pytest.raises(RetriableError, match=rf"does not answer[\s\S]*option: hosts[\s\S]*{advice}"):
            followed.follower(hosts=url).catch_up()


@pytest.mark.parametrize(
    "name", ["zz*", "*", "_all", "a,b", "-x", "+x", "Up", "a b", "a/b", "a#b", "..", "", "x" * 201,
             "a\ud800", "a\x7f", "a\u202eb", "a\u2028", "a\x85"]
)  # fmt: skip
def test_names_that_find_other_indexes_or_none_are_refused(followed, name):
    for make in (followed.follower, followed.reader):
        with pytest.raises(ConfigurationError, match=r"cannot be a name of OpenSearch[\s\S]*name='orders'"):
            make(name=name)


def test_settings_that_are_no_json_are_refused(followed):
    with pytest.raises(ConfigurationError, match=r"no JSON[\s\S]*number_of_shards"):
        followed.follower(settings={"number_of_shards": object()})


def test_minus_zero_is_zero_and_a_star_in_a_name_is_no_pattern(objects_at, opensearch):
    properties = {name: Property("double", filter=True) for name in ("a*", "ab", "*")}
    objects = objects_at(ObjectType("Z", {"id": "bigint"}, [Datasource("a", properties)]))
    objects.commit("a", [{"id": 1, "ab": 0.0}, {"id": 2, "a*": -0.0}, {"id": 3, "a*": -1.0, "*": 1.0}])
    followed = Followed(objects, opensearch.url, "hostile-zero")
    followed.follower().catch_up()
    reader, node = followed.reader(), objects.node()
    for text, keys in {
        "ab = -0.0": [1], "`a*` <= -0": [2, 3], "`a*` < -0.0": [3], "`a*` IN (-0.0)": [2], "NOT (ab != -0.0)": [1],
        "`a*` IS NULL": [1], "`*` IS NULL": [1, 2], "NOT (`a*` > 5)": [2, 3], "`*` IS NOT NULL": [3],
    }.items():  # fmt: skip
        for answers in (reader, node):
            assert [row["id"] for row in answers.where(text).fetch().rows] == keys, (text, answers)
    assert followed.follower().verify().is_equal


def test_a_limit_is_a_number_for_both(followed):
    followed.follower().catch_up()
    for answers in (followed.reader(), followed.objects.node()):
        with pytest.raises(ConfigurationError, match="limit is True"):
            answers.limit(True)


def test_blocks_are_named_and_the_user_is_not_suspected(followed):
    followed.follower().catch_up()
    index = followed.index()
    followed.objects.commit("a", [{"id": 1, "name": "new"}])
    for block in ("write", "metadata"):
        followed.client.indices.put_settings(index=index, body={f"index.blocks.{block}": True})
        with pytest.raises(ConfigurationError, match=r"index (write|metadata)[\s\S]*remove the block") as refused:
            followed.follower().catch_up()
        assert "password" not in str(refused.value)
        followed.client.indices.put_settings(index=index, body={f"index.blocks.{block}": None})
    followed.client.indices.close(index=index)
    with pytest.raises(ConfigurationError, match=r"index_closed[\s\S]*open the index or remove it"):
        followed.follower().catch_up()
    followed.client.indices.open(index=index)
    assert followed.follower().catch_up().data == 2 and followed.follower().verify().is_equal


def test_a_full_disk_is_named_and_not_filled_by_builds_that_cannot_serve(followed):
    followed.follower().catch_up()
    index = followed.index()
    followed.client.indices.put_settings(index=index, body={"index.blocks.read_only_allow_delete": True})
    for _ in range(3):
        with pytest.raises(RetriableError, match=r"disk usage exceeded[\s\S]*free its disk"):
            followed.follower().catch_up(full=True)
    assert followed.client.indices.get(index=f"{followed.name}-*").keys() == {index}
    followed.objects.commit("a", [{"id": 1, "name": "new"}])
    with pytest.raises(RetriableError, match=r"disk usage exceeded[\s\S]*free its disk"):
        followed.follower().catch_up()
    followed.client.indices.put_settings(index=index, body={"index.blocks.read_only_allow_delete": None})
    assert followed.follower().catch_up().data == 2 and followed.follower().verify().is_equal


def test_an_index_that_cannot_be_written_is_built_again(followed):
    """Without the alias of its writers each call would fail as if the index were gone."""
    followed.follower().catch_up()
    before = followed.index()
    followed.client.indices.delete_alias(index=before, name=f"{before}-writer")
    followed.objects.commit("a", [{"id": 1, "name": "new"}])
    assert followed.follower().catch_up().data == 2
    assert followed.index() != before and followed.reader().get(1)["name"] == "new"


@pytest.mark.parametrize("progress", [{}, {"progress": "x"}, {"progress": {"data": "1"}}])
def test_progress_of_someone_else_counts_for_nothing(followed, progress):
    followed.follower().catch_up()
    followed.client.index(index=followed.index(), id="progress", body=progress)
    with pytest.raises(ConfigurationError, match=r"has no index[\s\S]*catch_up"):
        followed.reader()
    assert followed.follower().catch_up().data == 1 and followed.reader().count() == 3


def test_a_template_of_the_cluster_does_not_hide_documents(followed):
    template = {"mappings": {"_source": {"enabled": False}, "_routing": {"required": True}}}
    body = {"index_patterns": [f"{followed.name}*"], "template": template}
    followed.client.indices.put_index_template(name=followed.name, body=body)
    try:
        assert followed.follower().catch_up().data == 1
        assert followed.reader().get(1)["name"] == "name 1" and followed.follower().verify().is_equal
    finally:
        followed.client.indices.delete_index_template(name=followed.name)


def test_verify_finds_a_version_that_keeps_later_facts_out(followed):
    followed.follower().catch_up()
    identity = id_of(followed.objects.definition.codec.encode((1,)))
    document = followed.client.get(index=followed.index(), id=identity)["_source"]
    followed.write(1, document, version=50, version_type="external")
    found = followed.follower().verify()
    assert found.named == ("(id=1) differs from the rows of its datasources",)
    followed.objects.commit("a", [{"id": 1, "name": "new"}])
    followed.follower().catch_up(full=True)
    assert followed.follower().verify().is_equal and followed.reader().get(1)["name"] == "new"


@pytest.mark.parametrize(
    "document", [{}, {"object": {"id": "5"}}, {"object": {"name": "x"}}, {"object": {"id": 2**62}}]
)
def test_documents_of_someone_else_are_named(followed, document):
    followed.follower().catch_up()
    followed.write(1, {"gone": False, "key": "zz", **document})
    found = followed.follower().verify()
    assert not found.is_equal and "(id=1) is missing in the index" in found.named
    if "object" not in document:
        with pytest.raises(DataError, match=r"holds no O: someone else has written it[\s\S]*catch_up\(full=True\)"):
            followed.reader().objects.fetch()
    if document.get("object", {}).get("id") != 2**62:
        assert "someone else has written the document" in str(found)


def test_a_slow_follower_of_the_definition_before_does_not_take_answers_back(followed):
    """It has read the log before the definition was replaced, and makes its index after the newer one serves."""
    objects, (first, second) = followed.objects, followed.objects.definition.datasources
    note = {**first.properties, "note": Property("string", filter=True)}
    newer = objects.defined(replace(objects.definition, datasources=[replace(first, properties=note), second]))
    slow = OpenSearch(hosts=[followed.url])
    create = slow.indices.create

    def meanwhile(**options: Any) -> Any:
        slow.indices.create = create
        assert newer.replace().serves
        newer.commit("a", [{"id": 0, "name": "new"}])
        followed.follower().catch_up()
        return create(**options)

    slow.indices.create = meanwhile
    followed.follower(hosts=slow).catch_up()
    with followed.reader() as reader:
        assert reader.get(0)["name"] == "new" and reader.where(note=None).count() == 3
    assert list(followed.client.indices.get(index=f"{followed.name}-*")) == [followed.index()]


def test_a_document_that_is_too_long_for_a_request_is_named(followed):
    class Short(OpenSearch):
        """A server that takes shorter requests."""

        def bulk(self, *, body: bytes, **options: Any) -> Any:
            if len(body) > 5_000:
                raise TransportError(413, "", {})
            return super().bulk(body=body, **options)

    followed.objects.commit("a", [{"id": 1, "name": "x" * 6_000}])
    with pytest.raises(DataError, match=r"OpenSearch refuses O \(id=1\): its document has 6,\d+ bytes[\s\S]*http.max_"):
        followed.follower(hosts=Short(hosts=[followed.url])).catch_up()


def test_an_index_that_is_replaced_while_it_is_asked_for_is_not_missing(followed):
    followed.follower().catch_up()
    client = OpenSearch(hosts=[followed.url])
    get = client.get

    def replaced(**options: Any) -> Any:
        client.get = get
        followed.follower().catch_up(full=True)
        return get(**options)

    client.get = replaced
    with followed.reader(hosts=client) as reader:
        assert reader.count() == 3


def test_answers_do_not_grow_with_the_documents(objects_at, opensearch):
    """OpenSearch keeps an answer in memory. A few thousand long documents at once would end it."""
    objects = objects_at(ObjectType("Long", {"id": "bigint"}, [Datasource("a", {"text": Property("string")})]))
    objects.commit("a", [{"id": number, "text": "x" * (40_000 if number > 50 else 5_000)} for number in range(350)])
    followed = Followed(objects, opensearch.url, "hostile-long")
    followed.follower().catch_up()
    sizes: list[int] = []

    class Client(OpenSearch):
        def search(self, **options: Any) -> Any:
            answer = super().search(**options)
            sizes.append(sum(len(hit["_source"]["object"]["text"]) for hit in answer["hits"]["hits"]))
            return answer

    client = Client(hosts=[followed.url])
    assert followed.follower(hosts=client).verify().is_equal
    assert len(followed.reader(hosts=client).limit(1_000).fetch().rows) == 350
    assert max(sizes) <= 9_000_000 < sum(sizes) / 2


OBJECT = ObjectType("O", {"id": "bigint"}, [Datasource("a", {"name": Property("string", filter=True)})])
META = Documents(OBJECT).mapping({"v": FORMAT, "object_type": "O", "pipeline": "000001"})["_meta"]["forebay"]
DEEP = b'{"a":' + b"[" * 100_000


def described(meta: object) -> dict[str, Any]:
    """Return what an index says of itself."""
    return {"/o": {"o-1": {"mappings": {"_meta": meta}}}}


@contextmanager
def scripted_server(answers: dict[str, Any]) -> Iterator[str]:
    """A server with one index; `answers` has other answers by the end of their path, or a pair with the code."""
    usual = {
        **described({"forebay": META}),
        "/_doc/progress": {"_source": {"progress": {"data": 1, "attempt": "a", "edits": 0}}},
        "/point_in_time": {"pit_id": "p"},
        "/_search": {"hits": {"total": {"value": 0}, "hits": []}},
    }

    def answer(path: str) -> tuple[int, bytes]:
        found = next((value for end, value in (usual | answers).items() if path.endswith(end)), {})
        code, content = found if isinstance(found, tuple) else (200, found)
        return code, content if isinstance(content, bytes) else json.dumps(content).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            code, body = answer(self.path.partition("?")[0])
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - names of the library

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    with served(Handler) as url:
        yield url


def all_answers(url: str) -> list[Any]:
    with OpenSearchObjects(url, "O", retry=ONCE) as objects:
        return [objects.count(), objects.get(3), objects.where("name > 'a'").fetch().rows]


def test_the_scripted_server_is_opensearch():
    with scripted_server({}) as url:
        assert all_answers(url) == [0, None, ()]


@pytest.mark.parametrize(
    "answers",
    [
        {"/point_in_time": {}}, {"/point_in_time": {"pit_id": {"a": 1}}}, {"/_search": {}},
        {"/_search": {"hits": {"total": 5, "hits": []}}}, {"/_search": {"hits": []}},
        *({"/_search": {"hits": {"total": {"value": 1}, "hits": hits}}}
          for hits in ([5], [{}], {}, None, [{"_id": 5}])),
        *({path: answer} for path in ("/o", "/_doc/progress", "/point_in_time", "/_search")
          for answer in (DEEP, (400, [1]), (400, DEEP), (404, [1]), (400, {"error": {"root_cause": [5]}}))),
    ],
)  # fmt: skip
def test_answers_that_opensearch_does_not_give_are_said_to_be_none(answers):
    with scripted_server(answers) as url, pytest.raises(RetriableError, match=r"what answers is not OpenSearch"):
        all_answers(url)


@pytest.mark.parametrize(
    "ask", [lambda reader: reader.count(), lambda reader: reader.get(3), lambda reader: reader.objects.fetch()]
)
def test_a_point_in_time_that_ends_at_once_is_asked_for_again_later(ask):
    with (
        scripted_server({"/_search": (404, {"error": {"type": "search_context_missing"}})}) as url,
        OpenSearchObjects(url, "O", retry=ONCE) as reader,
        pytest.raises(RetriableError, match=r"search_context_missing[\s\S]*next step: call it again"),
    ):
        ask(reader)


@pytest.mark.parametrize("meta", [[], None, 5, {}, {"forebay": "x"}, {"forebay": None}, {"forebay": [5]}])
def test_an_index_that_says_nothing_of_itself_is_of_someone_else(meta):
    with scripted_server(described(meta)) as url, pytest.raises(ConfigurationError, match="o-1, which is not of"):
        all_answers(url)


@pytest.mark.parametrize(
    "changed",
    [
        {"definition": None}, {"definition": []}, {"definition": {**OBJECT.to_facts(), "datasources": [5]}},
        {"definition": {**OBJECT.to_facts(), "key": [["id", "float"]]}}, {"definition": {}}, {"pipeline": None},
        {"pipeline": 5},
    ],
)  # fmt: skip
def test_a_description_that_someone_else_has_changed_is_damaged(changed):
    with (
        scripted_server(described({"forebay": META | changed})) as url,
        pytest.raises(DataError, match=r"the index 'o-1' of OpenSearch does not say what it has[\s\S]*catch_up"),
    ):
        all_answers(url)


def test_an_index_whose_description_is_damaged_is_built_again(followed):
    followed.follower().catch_up()
    before = followed.index()
    (found,) = followed.client.indices.get_mapping(index=before).values()
    meta = found["mappings"]["_meta"]
    del meta["forebay"]["definition"]
    followed.client.indices.put_mapping(index=before, body={"_meta": meta})
    for ask in (followed.reader, followed.follower().verify):
        with pytest.raises(DataError, match=r"does not say what it has[\s\S]*catch_up"):
            ask()
    assert followed.follower().catch_up().data == 1 and followed.follower().verify().is_equal
    assert list(followed.client.indices.get(index=f"{followed.name}-*")) == [followed.index()] != [before]


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("bulk", {}), ("bulk", {"items": []}), ("bulk", {"items": [5] * 3}), ("bulk", {"items": [{"index": {}}] * 3}),
        ("indices.refresh", {}), ("indices.refresh", {"_shards": 5}), ("indices.create", {"error": "x"}),
    ],
)  # fmt: skip
def test_a_follower_believes_no_answer_that_opensearch_does_not_give(followed, method, answer):
    client = OpenSearch(hosts=[followed.url])
    place, _, name = f"client.{method}".rpartition(".")
    setattr(client.indices if "indices" in place else client, name, lambda **_: answer)
    with pytest.raises(RetriableError, match="what answers is not OpenSearch"):
        followed.follower(hosts=client).catch_up()
    assert followed.follower().catch_up().data == 1 and followed.follower().verify().is_equal


def test_verify_says_that_the_index_is_gone(followed):
    followed.follower().catch_up()
    client = OpenSearch(hosts=[followed.url])
    client.create_pit = raising(NotFoundError(404, "index_not_found_exception", {}))
    with pytest.raises(RetriableError, match=r"index_not_found_exception[\s\S]*next step: "):
        followed.follower(hosts=client).verify()


def test_what_is_cleaned_up_does_not_fail(followed):
    followed.follower().catch_up()
    client = OpenSearch(hosts=[followed.url])
    client.delete_pit = raising(AttributeError("'list' object has no attribute 'get'"))
    assert followed.follower(hosts=client).verify().is_equal


def raising(error: Exception) -> Any:
    def fail(**_: object) -> Any:
        raise error

    return fail
