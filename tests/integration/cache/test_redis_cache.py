from __future__ import annotations

import logging
import os
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from qtmiddleware.config import Config
from qtmiddleware.config.redis_address import RedisAddress
from qtmiddleware.errors import ConfigError, MissingExtra
from qtmiddleware.runtime import redis_cache
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.redis_cache import FORMAT, MAX_BYTES, RedisCache
from qtmiddleware.types import Transformation
from tests.support import redis_worker
from tests.support.redis_world import Impostor, RedisServer
from tests.support.waiting import wait_until

KEY = "c0ffee" * 10
NAME = f"qtm:{FORMAT}:{KEY}"
MADE = Transformation(
    rewrite="whose text this is", sub_queries=("one", "two"), notes=(("hyde", "dropped"),)
)
Open = Callable[..., RedisCache]
Pose = Callable[[bytes | None], Impostor]


class Clock:
    """The time of a breaker, which a test moves on."""

    def __init__(self) -> None:
        self.passed = 0.0

    def __call__(self) -> float:
        return monotonic() + self.passed


def kept(server: RedisServer) -> set[str]:
    return {name.decode() for name in server.admin.keys("*")}


def look(cache: RedisCache, key: str = KEY) -> Transformation | None:
    return cache.get(key, lambda _: True)


# What is kept


def test_what_one_puts_the_others_get(server: RedisServer, opened: Open) -> None:
    one, other = opened(server.url), opened(f"redis://127.0.0.1:{server.port}/0")
    assert look(one) is None
    one.put(KEY, MADE)
    assert look(one) == look(other) == MADE
    assert look(other, "other key") is None
    assert kept(server) == {NAME}


def test_values_end_by_themselves_after_their_time(server: RedisServer, opened: Open) -> None:
    cache = opened(server.url, ttl_seconds=1_234)
    cache.put(KEY, MADE)
    assert 1_200_000 < server.admin.pttl(NAME) <= 1_234_000
    server.admin.pexpire(NAME, 0)
    assert look(cache) is None


def test_a_database_of_the_address_is_kept_to(server: RedisServer, opened: Open) -> None:
    opened(f"{server.url}?db=3").put(KEY, MADE)
    assert look(opened(f"redis://127.0.0.1:{server.port}/3")) == MADE
    assert kept(server) == set()


def test_what_is_too_large_to_be_shared_is_not_put(server: RedisServer, opened: Open) -> None:
    opened(server.url).put(KEY, Transformation(hyde="a" * MAX_BYTES))
    assert kept(server) == set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_has_connections_of_its_own(server: RedisServer) -> None:
    done = subprocess.run(
        [sys.executable, redis_worker.__file__, server.url], timeout=200, check=False
    )
    assert done.returncode == 0


# What cannot be read


@pytest.mark.parametrize(
    "damaged", [b"junk", b'{"v":2}', b"\xff\xfe", b"a" * (MAX_BYTES + 1), b"a" * 20 * MAX_BYTES]
)
def test_a_value_that_cannot_be_read_is_none_and_is_overwritten(
    server: RedisServer, opened: Open, caplog: pytest.LogCaptureFixture, damaged: bytes
) -> None:
    server.admin.set(NAME, damaged, ex=500)
    cache = opened(server.url)
    assert look(cache) is None
    # What is too large is not even sent as a whole.
    assert server.admin.info("stats")["total_net_output_bytes"] < 1.5 * MAX_BYTES
    cache.put(KEY, MADE)
    assert look(cache) == MADE
    assert kept(server) == {NAME}
    assert caplog.messages == [
        f"{NAME} in the shared cache at {server.socket} cannot be read and will be overwritten"
    ]
    assert not cache.wait_seconds


def test_a_value_of_another_type_is_none_and_is_overwritten(
    server: RedisServer, opened: Open
) -> None:
    server.admin.rpush(NAME, "not ours")
    cache = opened(server.url)
    assert look(cache) is None
    assert not cache.wait_seconds
    cache.put(KEY, MADE)
    assert look(cache) == MADE


def test_a_value_that_is_not_accepted_is_none(server: RedisServer, opened: Open) -> None:
    cache = opened(server.url)
    cache.put(KEY, MADE)
    assert cache.get(KEY, lambda made: made != MADE) is None


# When Redis fails


def test_a_redis_that_is_down_is_tried_once_an_interval(
    impostor: Pose, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    silent, clock = impostor(None), Clock()
    cache = opened(silent.url, timeout=0.05, breaker=Breaker(1, 30.0, clock=clock))
    assert not cache.wait_seconds
    for interval in (1, 2, 3):
        for _ in range(20):
            assert look(cache) is None
            cache.put(KEY, MADE)
            assert cache.wait_seconds
        assert silent.counted(interval) == interval
        clock.passed += 31
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: look(cache), range(8))) == [None] * 8
    assert silent.counted(4) == 4
    assert caplog.messages == [
        f"the shared cache at {silent.url[8:]} is not used for 30 s: TimeoutError"
    ]


def test_a_redis_that_is_back_is_used_again(
    stopped_server: RedisServer, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock, server = Clock(), stopped_server
    cache = opened(server.url, breaker=Breaker(1, 30.0, clock=clock))
    for _ in range(2):
        assert look(cache) is None
        assert cache.wait_seconds
        server.start()
        cache.put(KEY, MADE)
        assert kept(server) == set()
        clock.passed += 31
        assert not cache.wait_seconds
        assert look(cache) is None
        cache.put(KEY, MADE)
        assert look(cache) == MADE
        server.kill()
    where = f"the shared cache at {server.socket}"
    assert (
        caplog.messages
        == [
            f"{where} is not used for 30 s: ConnectionError",
            f"{where} works again",
        ]
        * 2
    )


def test_a_redis_that_was_restarted_is_not_taken_for_down(
    server: RedisServer, opened: Open
) -> None:
    cache = opened(server.url)
    assert look(cache) is None
    server.kill()
    server.start()
    cache.put(KEY, MADE)
    assert look(cache) == MADE


def test_a_redis_that_hangs_is_left_alone_until_it_answers(
    server: RedisServer, opened: Open
) -> None:
    clock = Clock()
    cache, hanging = (
        opened(server.url),
        opened(server.url, timeout=0.2, breaker=Breaker(1, 30.0, clock=clock)),
    )
    cache.put(KEY, MADE)

    def reaches() -> bool:
        # A busy machine may take longer than its timeout; then the next interval is tried.
        clock.passed += 31
        return look(hanging) == MADE

    wait_until(reaches)
    server.signal(signal.SIGSTOP)
    assert look(hanging) is None
    assert hanging.wait_seconds
    server.signal(signal.SIGCONT)
    assert look(hanging) is None
    server.admin.ping()
    wait_until(reaches)


def test_a_full_redis_still_reads(server: RedisServer, opened: Open) -> None:
    one, other = opened(server.url), opened(server.url)
    one.put(KEY, MADE)
    server.admin.config_set("maxmemory", 1)
    assert look(other) == MADE
    one.put("another", MADE)
    assert one.wait_seconds
    assert kept(server) == {NAME}


def test_a_replica_that_only_reads_still_reads(server: RedisServer, opened: Open) -> None:
    cache = opened(server.url)
    cache.put(KEY, MADE)
    server.admin.replicaof("127.0.0.1", 1)
    assert look(cache) == MADE
    cache.put("another", MADE)
    assert cache.wait_seconds


@pytest.mark.parametrize(
    "answer",
    [
        *(
            b"-%b this is the text\r\n" % code
            for code in (b"LOADING", b"OOM", b"READONLY", b"NOPERM", b"ERR", b"MOVED")
        ),
        *(
            b":1\r\n",
            b"$-1\r\n",
            b"*0\r\n",
            b"*3\r\n:1\r\n:0\r\n:0\r\n",
            b"*3\r\n*0\r\n*0\r\n*0\r\n",
        ),
        *(
            b"",
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            b"$999999999999\r\n",
            b"*3\r\n$5\r\nab",
            b"\0" * 100,
        ),
    ],
)
def test_what_answers_otherwise_than_redis_is_left_alone(
    impostor: Pose, opened: Open, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server = impostor(answer)
    cache = opened(server.url)
    assert look(cache) is None
    assert cache.wait_seconds
    assert "is not used for 60 s" in caplog.text
    assert "this is" not in caplog.text


@given(st.binary() | st.binary().map(lambda it: b"$%d\r\n%b\r\n" % (len(it), it)))
@example(b"*3\r\n$4\r\njunk\r\n:0\r\n:0\r\n")
@settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_no_answer_makes_it_raise(impostor: Pose, opened: Open, answer: bytes) -> None:
    server = impostor(answer)
    cache = opened(server.url, breaker=Breaker(0, 1.0))
    assert look(cache) is None
    cache.put(KEY, MADE)


def test_it_speaks_of_nothing_but_the_question(impostor: Pose, opened: Open) -> None:
    server = impostor(b"-ERR\r\n")
    look(opened(server.url))
    assert server.heard.startswith(b"*4\r\n$8\r\nGETRANGE\r\n")


@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1:1", "redis://a..b:6379", "unix:///nowhere/redis.sock"]
)
def test_an_address_where_nobody_is_costs_nothing_but_the_sharing(opened: Open, url: str) -> None:
    cache = opened(url)
    assert look(cache) is None
    assert cache.wait_seconds


def test_calls_that_never_come_back_count_as_failed(
    impostor: Pose, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    silent, clock, places = impostor(None), Clock(), redis_cache._CONNECTIONS
    cache = opened(silent.url, timeout=100.0, breaker=Breaker(1, 60.0, clock=clock))
    hanging = [threading.Thread(target=look, args=(cache,), daemon=True) for _ in range(places)]
    for thread in hanging:
        thread.start()
    wait_until(lambda: silent.heard.count(b"GETRANGE") == places)
    clock.passed += 151
    # Nobody waits for a connection of theirs either.
    assert look(cache) is None
    assert cache.wait_seconds
    cache.close()
    for thread in hanging:
        thread.join(30)
        assert not thread.is_alive()


# Addresses and secrets


def test_the_password_comes_from_the_environment_alone(
    stopped_server: RedisServer, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_server.start("--requirepass", "tall secret/@:?")
    nobody = opened(stopped_server.url)
    assert look(nobody) is None
    assert nobody.wait_seconds
    monkeypatch.setenv("REDIS_PASSWORD", "tall secret/@:?")
    one = opened(stopped_server.url)
    one.put(KEY, MADE)
    monkeypatch.setenv("REDIS_USERNAME", "default")
    assert look(opened(f"redis://127.0.0.1:{stopped_server.port}/0")) == MADE
    monkeypatch.setenv("REDIS_PASSWORD", "wrong")
    stranger = opened(stopped_server.url)
    assert look(stranger) is None
    assert stranger.wait_seconds


def test_a_user_needs_these_rights_alone(
    stopped_server: RedisServer, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    rights = ("~qtm:*", "+getrange", "+set")
    stopped_server.start("--user", "app", "on", ">sesame", *rights)
    monkeypatch.setenv("REDIS_USERNAME", "app")
    monkeypatch.setenv("REDIS_PASSWORD", "sesame")
    cache = opened(stopped_server.url)
    stopped_server.admin.set(NAME, "junk")
    assert look(cache) is None
    cache.put(KEY, MADE)
    assert look(cache) == MADE
    assert not cache.wait_seconds


def test_an_encrypted_connection_is_made_where_the_certificate_is_known(
    stopped_server: RedisServer,
    opened: Open,
    certificate: tuple[Path, Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    pem, key = map(str, certificate)
    with_tls = (
        "--tls-cert-file",
        pem,
        "--tls-key-file",
        key,
        "--tls-ca-cert-file",
        pem,
        "--tls-auth-clients",
        "no",
    )
    stopped_server.start("--port", "0", "--tls-port", str(stopped_server.port), *with_tls)
    url = f"rediss://127.0.0.1:{stopped_server.port}/0"
    known = opened(f"{url}?ssl_ca_certs={pem}")
    known.put(KEY, MADE)
    assert look(known) == MADE
    unknown = opened(url)
    assert look(unknown) is None
    assert unknown.wait_seconds


@pytest.mark.parametrize(
    ("options", "reqs", "checks"),
    [
        ("", ssl.CERT_REQUIRED, True),
        ("?ssl_ca_certs=ca.pem", ssl.CERT_REQUIRED, True),
        ("?ssl_cert_reqs=optional", ssl.CERT_OPTIONAL, True),
        ("?ssl_cert_reqs=none", ssl.CERT_NONE, False),
        ("?ssl_check_hostname=false", ssl.CERT_REQUIRED, False),
    ],
)
def test_certificate_and_host_name_are_checked_unless_the_address_says_otherwise(
    options: str, reqs: ssl.VerifyMode, checks: bool
) -> None:
    pool = RedisAddress(f"rediss://host{options}").make_client(1.0).connection_pool
    connection = pool.connection_class(**pool.connection_kwargs)
    assert (connection.cert_reqs, connection.check_hostname) == (reqs, checks)


def test_a_certificate_of_another_name_is_refused(
    stopped_server: RedisServer, opened: Open, certificate: tuple[Path, Path]
) -> None:
    pem, key = map(str, certificate)
    with_tls = (
        "--tls-cert-file",
        pem,
        "--tls-key-file",
        key,
        "--tls-ca-cert-file",
        pem,
        "--tls-auth-clients",
        "no",
    )
    stopped_server.start("--port", "0", "--tls-port", str(stopped_server.port), *with_tls)
    cache = opened(f"rediss://127.0.0.2:{stopped_server.port}/0?ssl_ca_certs={pem}")
    assert look(cache) is None
    assert cache.wait_seconds


@pytest.mark.parametrize(
    "option", ["ssl_cert_reqs=perhaps", "ssl_cert_reqs=None", "ssl_check_hostname=perhaps"]
)
def test_a_wrong_option_of_tls_fails_the_check_of_the_config(option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.load({"cache": {"redisUrl": f"rediss://host?{option}"}}, environ={})
    assert caught.value.path == "cache.redisUrl"


def test_no_plain_word_is_said_where_an_encrypted_connection_is_asked_for(
    server: RedisServer, opened: Open
) -> None:
    cache = opened(f"rediss://127.0.0.1:{server.port}", timeout=0.1)
    assert look(cache) is None
    assert cache.wait_seconds


def test_nothing_secret_is_logged_or_shown(
    stopped_server: RedisServer,
    impostor: Pose,
    opened: Open,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("REDIS_USERNAME", "sesame")
    monkeypatch.setenv("REDIS_PASSWORD", "sesame")
    stopped_server.start("--requirepass", "other")
    urls = [
        stopped_server.url,
        f"redis://127.0.0.1:{stopped_server.port}",
        "redis://127.0.0.1:1",
        "redis://a..b",
    ]
    urls += [
        impostor(answer).url
        for answer in (b"junk sesame\r\n", b"-ERR sesame\r\n", b"+OK\r\n-ERR sesame\r\n")
    ]
    shown = ""
    for url in urls:
        cache = opened(url, breaker=Breaker(1, 0.001))
        for _ in range(3):
            look(cache)
            cache.put(KEY, MADE)
        shown += repr(cache) + str(cache)
    assert len(caplog.records) >= len(urls)
    for secret in ("sesame", KEY, "whose text"):
        assert secret not in caplog.text + shown
    assert repr(cache) == f"RedisCache({urls[-1][8:]})"


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "localhost",
            "localhost:6379",
            "http://localhost",
            "redis:",
            "redis://",
            "redis:///0",
            "REDIS://localhost",
        ),
        *(
            "redis://host:0",
            "redis://host:70000",
            "redis://host:port",
            "redis://host/name",
            "redis://host/0/1",
        ),
        *(
            "redis://host?db=a",
            "redis://host?timeout=5",
            "redis://host?protocol=3",
            "redis://host#0",
            " redis://host",
        ),
        *(
            "redis://[::1",
            "redis://host?ssl_ca_certs=a.pem",
            "rediss://host?ssl_unknown=1",
            "redis://host?db",
        ),
        *(
            "rediss://host?ssl_cert_reqs=perhaps",
            "unix://",
            "unix:///",
            "unix://relative/redis.sock",
            "redis://ho st",
        ),
    ],
)
def test_an_address_that_cannot_be_used_is_told(opened: Open, url: str) -> None:
    with pytest.raises(ConfigError, match=r"must be an address.*redis://host:6379/0") as caught:
        opened(url)
    assert caught.value.path == "cache.redisUrl"


@pytest.mark.parametrize(
    "url",
    [
        *(
            "redis://:sesame@host",
            "redis://sesame@host",
            "redis://sesame:@host/0",
            "redis://host?password=sesame",
        ),
        *(
            "redis://u:se/sesame@host",
            "redis://u:sesame?a@host",
            "redis://u:sesame#a@host",
            "redis://u:12/sesame@host",
        ),
        *(
            "unix://sesame@/a.sock",
            "unix:///a.sock?username=sesame",
            "rediss://host?ssl_password=sesame",
        ),
        *("redis://u:sesame[@host", "redis://u:\nsesame@host", "redis://u:a:sesame@host:12"),
    ],
)
def test_an_address_with_a_secret_is_refused_without_showing_it(opened: Open, url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        opened(url)
    assert "sesame" not in f"{caught.value} {caught.value!r} {vars(caught.value)}"


def test_without_the_client_of_redis_the_extra_is_named(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingExtra, match=r"qtmiddleware\[redis\]"):
        opened("redis://localhost")


# What it takes


def test_no_more_connections_are_held_than_it_may_and_none_when_closed(
    server: RedisServer, opened: Open
) -> None:
    cache = opened(server.url, timeout=20.0)
    threads = set(threading.enumerate())
    with ThreadPoolExecutor(100) as pool:
        list(pool.map(lambda it: look(cache, f"key {it}"), range(1_000)))
    assert len(server.admin.client_list()) <= 1 + redis_cache._CONNECTIONS
    cache.close()
    cache.close()
    wait_until(lambda: len(server.admin.client_list()) == 1)
    # Those of the pool have ended; a thread that the cache had begun would stay.
    wait_until(lambda: not set(threading.enumerate()) - threads)
    cache.put(KEY, MADE)
    assert look(cache) == MADE


@pytest.mark.parametrize("answer", [None, b"", b"junk\r\n", b"-ERR\r\n"])
def test_failures_leave_nothing_open(impostor: Pose, opened: Open, answer: bytes | None) -> None:
    server = impostor(answer)
    cache = opened(server.url, timeout=0.01 if answer is None else 5.0, breaker=Breaker(0, 1.0))
    for _ in range(20):
        assert look(cache) is None
    cache.close()
    wait_until(lambda: server.connections and server.has_been_left())
