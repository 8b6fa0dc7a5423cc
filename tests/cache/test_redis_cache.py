from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from time import monotonic, sleep

import pytest
import redis_worker
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from redis_world import Impostor, RedisServer

from qtmiddleware.config import Config
from qtmiddleware.config.redis_address import RedisAddress
from qtmiddleware.errors import ConfigError, MissingExtra
from qtmiddleware.runtime.cache import redis_cache
from qtmiddleware.runtime.cache.redis_cache import Claim, RedisCache
from qtmiddleware.runtime.cache.stored import MAX_BYTES, decode
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.types import Deadline, Transformation

KEY = "c0ffee" * 10
NAME = f"qtm:1:{{{KEY}}}"
MADE = Transformation(rewrite="whose text this is", sub_queries=("one", "two"), notes=(("hyde", "dropped"),))
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


def held_by_all(cache: RedisCache, deadline: float = 30) -> list[Transformation | None]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda _: cache.wait(KEY, Deadline.after(deadline)), range(8)))


# What is kept


def test_what_one_keeps_the_others_read(server: RedisServer, opened: Open) -> None:
    one, other = opened(server.url), opened(f"redis://127.0.0.1:{server.port}/0")
    assert one.claim(KEY, 30) is Claim.MINE
    assert other.claim(KEY, 30) is Claim.ELSEWHERE
    one.keep(KEY, MADE)
    assert other.claim(KEY, 30) == other.wait(KEY, Deadline.after(30)) == MADE
    assert other.claim("other key", 30) is Claim.MINE
    assert kept(server) == {NAME, "qtm:1:{other key}:claim"}


def test_values_and_claims_end_by_themselves_after_their_time(server: RedisServer, opened: Open) -> None:
    cache = opened(server.url, ttl_seconds=1_234)
    cache.claim(KEY, 45.5)
    assert 30_000 < server.admin.pttl(f"{NAME}:claim") <= 45_500
    cache.keep(KEY, MADE)
    assert 1_200_000 < server.admin.pttl(NAME) <= 1_234_000
    server.admin.pexpire(NAME, 0)
    assert cache.claim(KEY, float("inf")) is Claim.MINE
    assert 0 < server.admin.pttl(f"{NAME}:claim") <= 86_400_000


def test_a_database_of_the_address_is_kept_to(server: RedisServer, opened: Open) -> None:
    opened(f"{server.url}?db=3").keep(KEY, MADE)
    assert opened(f"redis://127.0.0.1:{server.port}/3").claim(KEY, 30) == MADE
    assert kept(server) == set()


def test_a_claim_is_given_up_by_its_owner_alone(server: RedisServer, opened: Open) -> None:
    one, other = opened(server.url), opened(server.url)
    one.claim(KEY, 30)
    other.release(KEY)
    assert other.claim(KEY, 30) is Claim.ELSEWHERE
    other.keep(KEY, MADE)
    assert kept(server) == {NAME, f"{NAME}:claim"}
    one.release(KEY)
    assert kept(server) == {NAME}


def test_what_is_too_large_to_be_shared_is_not_kept_and_its_claim_given_up(server: RedisServer, opened: Open) -> None:
    cache = opened(server.url)
    cache.claim(KEY, 30)
    cache.keep(KEY, Transformation(hyde="a" * MAX_BYTES))
    assert kept(server) == set()


# Waiting for another process


def test_of_many_processes_and_threads_one_asks_and_all_have_what_it_made(server: RedisServer) -> None:
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as processes:
        crowds = [processes.submit(redis_worker.crowd, server.url, KEY, 8, 32) for _ in range(4)]
        told = [answer for one in crowds for answer in one.result()]
    assert len(told) == 32
    assert [answer for answer, _ in told].count("mine") == 1
    assert {answer for answer, _ in told} == {"mine", "elsewhere"}
    assert len({made for _, made in told}) == 1
    assert told[0][1] is not None


def test_when_a_process_dies_another_takes_its_claim_over(server: RedisServer, opened: Open) -> None:
    context = multiprocessing.get_context("spawn")
    claimed = context.Event()
    process = context.Process(target=redis_worker.claim_and_hang, args=(server.url, KEY, claimed))
    process.start()
    assert claimed.wait(30)
    process.kill()
    process.join()
    cache = opened(server.url)
    assert cache.claim(KEY, 30) is Claim.ELSEWHERE
    server.admin.pexpire(f"{NAME}:claim", 50)
    assert cache.wait(KEY, Deadline.after(30)) is None
    assert opened(server.url).claim(KEY, 30) is Claim.ELSEWHERE
    assert 10_000 < server.admin.pttl(f"{NAME}:claim") <= 30_000


def test_of_many_who_wait_for_one_that_gave_up_one_takes_over(server: RedisServer, opened: Open) -> None:
    owner, waiting = opened(server.url), opened(server.url)
    owner.claim(KEY, 30)
    waiting.claim(KEY, 30)
    with ThreadPoolExecutor(8) as pool:

        def one(_: int) -> bool:
            if waiting.wait(KEY, Deadline.after(30)) is None:
                waiting.keep(KEY, MADE)
                return True
            return False

        asked = [pool.submit(one, place) for place in range(8)]
        owner.release(KEY)
        assert sum(one.result() for one in asked) == 1


def test_nobody_waits_beyond_the_deadline(server: RedisServer, opened: Open) -> None:
    opened(server.url).claim(KEY, 60)
    cache = opened(server.url)
    assert held_by_all(cache, 0.05) == [None] * 8
    with ThreadPoolExecutor(1) as pool:
        deadline = Deadline()
        waiting = pool.submit(cache.wait, KEY, deadline)
        deadline.cancel()
        assert waiting.result(30) is None


def test_a_claim_that_comes_after_the_deadline_is_given_up(server: RedisServer, opened: Open) -> None:
    class Passing(Deadline):
        """Passes between two looks."""

        looks = 0

        @property
        def passed(self) -> bool:
            self.looks += 1
            return self.looks > 1

    assert opened(server.url).wait(KEY, Passing()) is None
    assert kept(server) == set()


def test_who_waits_for_a_redis_that_dies_asks_alone(server: RedisServer, opened: Open) -> None:
    opened(server.url).claim(KEY, 60)
    cache = opened(server.url)
    assert cache.claim(KEY, 60) is Claim.ELSEWHERE
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(cache.wait, KEY, Deadline())
        server.kill()
        assert waiting.result(30) is None
    assert cache.is_resting


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_has_connections_and_claims_of_its_own(server: RedisServer) -> None:
    done = subprocess.run([sys.executable, redis_worker.__file__, server.url], timeout=60, check=False)
    assert done.returncode == 0


# What cannot be read


@pytest.mark.parametrize("damaged", [b"junk", b"", b'{"v":2}', b"\xff\xfe", b"a" * (MAX_BYTES + 1)])
def test_a_value_that_cannot_be_read_is_named_and_kept_aside_for_its_time(
    server: RedisServer, opened: Open, caplog: pytest.LogCaptureFixture, damaged: bytes
) -> None:
    server.admin.set(NAME, damaged, ex=500)
    cache = opened(server.url)
    assert cache.claim(KEY, 30) is Claim.MINE
    # What is too large is not even sent.
    assert server.admin.info("stats")["total_net_output_bytes"] < MAX_BYTES / 2
    assert server.admin.get(f"{NAME}:corrupt") == damaged
    assert 400 < server.admin.ttl(f"{NAME}:corrupt") <= 500
    cache.keep(KEY, MADE)
    assert cache.claim(KEY, 30) == MADE
    assert caplog.messages == [
        f"{NAME} of the shared cache at {server.socket} cannot be read; it is {NAME}:corrupt now"
    ]
    assert not cache.is_resting


def test_a_value_of_another_type_is_kept_aside_too(server: RedisServer, opened: Open) -> None:
    server.admin.rpush(NAME, "not ours")
    cache = opened(server.url)
    assert cache.claim(KEY, 30) is Claim.MINE
    assert server.admin.lrange(f"{NAME}:corrupt", 0, -1) == [b"not ours"]
    cache.keep(KEY, MADE)
    assert cache.claim(KEY, 30) == MADE


def test_a_claim_of_another_type_is_waited_for_and_left_alone(server: RedisServer, opened: Open) -> None:
    server.admin.rpush(f"{NAME}:claim", "not ours")
    cache = opened(server.url)
    assert cache.claim(KEY, 30) is Claim.ELSEWHERE
    assert cache.wait(KEY, Deadline.after(0.02)) is None
    cache.release(KEY)
    cache.keep(KEY, MADE)
    assert cache.claim(KEY, 30) == MADE
    assert not cache.is_resting


def test_what_was_written_anew_meanwhile_is_not_set_aside(
    server: RedisServer, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, other = opened(server.url), opened(server.url)
    server.admin.set(NAME, "junk")

    def slow(written: bytes) -> Transformation | None:
        if written == b"junk":
            other.keep(KEY, MADE)
        return decode(written)

    monkeypatch.setattr(redis_cache, "decode", slow)
    assert cache.claim(KEY, 30) == MADE
    assert kept(server) == {NAME}


def test_nobody_is_held_by_values_that_are_damaged_again_and_again(
    server: RedisServer, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaging(written: bytes) -> None:
        server.admin.set(NAME, written + b"!")

    monkeypatch.setattr(redis_cache, "decode", damaging)
    server.admin.set(NAME, "junk")
    assert opened(server.url).claim(KEY, 30) is Claim.MINE
    assert server.admin.get(NAME) == b"junk!!"


# When Redis fails


def test_a_redis_that_is_down_is_tried_once_an_interval(
    impostor: Pose, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    silent, clock = impostor(None), Clock()
    cache = opened(silent.url, timeout=0.05, breaker=Breaker(1, 30.0, clock=clock))
    assert not cache.is_resting
    for interval in (1, 2, 3):
        for _ in range(20):
            assert cache.claim(KEY, 30) is Claim.MINE
            assert cache.wait(KEY, Deadline()) is None
            cache.keep(KEY, MADE)
            cache.release(KEY)
            assert cache.is_resting
        assert silent.counted(interval) == interval
        clock.passed += 31
    assert held_by_all(cache) == [None] * 8
    assert silent.counted(4) == 4
    assert caplog.messages == [f"the shared cache at {silent.url[8:]} is left alone for 30 s: TimeoutError"]


def test_a_redis_that_is_back_is_used_again(
    stopped_server: RedisServer, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock, server = Clock(), stopped_server
    cache = opened(server.url, breaker=Breaker(1, 30.0, clock=clock))
    for _ in range(2):
        assert cache.claim(KEY, 30) is Claim.MINE
        assert cache.is_resting
        server.start()
        cache.keep(KEY, MADE)
        assert kept(server) == set()
        clock.passed += 31
        assert not cache.is_resting
        assert cache.claim(KEY, 30) is Claim.MINE
        cache.keep(KEY, MADE)
        assert cache.claim(KEY, 30) == MADE
        server.kill()
    where = f"the shared cache at {server.socket}"
    assert (
        caplog.messages
        == [
            f"{where} is left alone for 30 s: ConnectionError",
            f"{where} is used again",
        ]
        * 2
    )


def test_a_redis_that_was_restarted_is_not_taken_for_down(server: RedisServer, opened: Open) -> None:
    cache = opened(server.url)
    assert cache.claim(KEY, 30) is Claim.MINE
    server.kill()
    server.start()
    cache.keep(KEY, MADE)
    assert cache.claim(KEY, 30) == MADE


def test_a_redis_that_hangs_is_left_alone_until_it_answers(server: RedisServer, opened: Open) -> None:
    clock = Clock()
    cache, hanging = opened(server.url), opened(server.url, timeout=0.5, breaker=Breaker(1, 30.0, clock=clock))
    cache.keep(KEY, MADE)
    assert hanging.claim(KEY, 30) == MADE
    server.signal(signal.SIGSTOP)
    assert hanging.claim(KEY, 30) is Claim.MINE
    assert hanging.is_resting
    server.signal(signal.SIGCONT)
    assert hanging.claim(KEY, 30) is Claim.MINE
    clock.passed += 31
    server.admin.ping()
    assert hanging.claim(KEY, 30) == MADE


def test_a_full_redis_still_reads_and_takes_claims_back(server: RedisServer, opened: Open) -> None:
    one, other = opened(server.url), opened(server.url)
    one.keep(KEY, MADE)
    one.claim("another", 30)
    server.admin.config_set("maxmemory", 1)
    assert other.claim(KEY, 30) == MADE
    one.keep("another", MADE)
    assert one.is_resting
    assert kept(server) == {NAME}
    assert other.claim("another", 30) is Claim.MINE
    assert other.is_resting


def test_a_replica_that_only_reads_still_reads(server: RedisServer, opened: Open) -> None:
    cache = opened(server.url)
    cache.keep(KEY, MADE)
    server.admin.replicaof("127.0.0.1", 1)
    assert cache.claim(KEY, 30) == MADE
    assert cache.claim("another", 30) is Claim.MINE
    assert cache.is_resting


@pytest.mark.parametrize(
    "answer",
    [
        *(
            b"-%b this is the text\r\n" % code
            for code in (b"LOADING", b"OOM", b"READONLY", b"NOPERM", b"ERR", b"MOVED")
        ),
        *(b"+OK\r\n", b":1\r\n", b"$-1\r\n", b"*0\r\n", b"*3\r\n:1\r\n:0\r\n:0\r\n", b"*3\r\n*0\r\n*0\r\n*0\r\n"),
        *(b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"$999999999999\r\n", b"*3\r\n$5\r\nab", b"\0" * 100),
    ],
)
def test_what_answers_otherwise_than_redis_is_left_alone(
    impostor: Pose, opened: Open, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server = impostor(answer)
    cache = opened(server.url)
    assert cache.claim(KEY, 30) is Claim.MINE
    assert cache.is_resting
    assert "is left alone for 60 s" in caplog.text
    assert "this is" not in caplog.text


@given(st.binary() | st.binary().map(lambda it: b"$%d\r\n%b\r\n" % (len(it), it)))
@example(b"*3\r\n$4\r\njunk\r\n:0\r\n:0\r\n")
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_answer_makes_it_raise(impostor: Pose, opened: Open, answer: bytes) -> None:
    server = impostor(answer)
    cache = opened(server.url, breaker=Breaker(0, 1.0))
    assert cache.claim(KEY, 30) is Claim.MINE
    cache.keep(KEY, MADE)
    cache.release(KEY)
    assert cache.wait(KEY, Deadline.after(5)) is None


def test_it_speaks_of_nothing_but_the_question(impostor: Pose, opened: Open) -> None:
    server = impostor(b"-ERR\r\n")
    opened(server.url).claim(KEY, 30)
    assert server.heard.startswith(b"*10\r\n$4\r\nEVAL\r\n")


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "redis://a..b:6379", "unix:///nowhere/redis.sock"])
def test_an_address_where_nobody_is_costs_nothing_but_the_sharing(opened: Open, url: str) -> None:
    cache = opened(url)
    assert cache.claim(KEY, 30) is Claim.MINE
    assert cache.is_resting


def test_calls_that_never_come_back_count_as_failed(
    impostor: Pose, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    silent, clock, places = impostor(None), Clock(), redis_cache._CONNECTIONS
    cache = opened(silent.url, timeout=100.0, breaker=Breaker(1, 60.0, clock=clock))
    hanging = [threading.Thread(target=cache.claim, args=(KEY, 30), daemon=True) for _ in range(places)]
    for thread in hanging:
        thread.start()
    while silent.heard.count(b"EVAL") < places:
        sleep(0.005)
    clock.passed += 151
    # Nobody waits for a connection of theirs either.
    assert cache.claim(KEY, 30) is Claim.MINE
    assert cache.is_resting
    assert caplog.messages == [f"the shared cache at {silent.url[8:]} is left alone for 60 s: no answer in time"]
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
    assert nobody.claim(KEY, 30) is Claim.MINE
    assert nobody.is_resting
    monkeypatch.setenv("REDIS_PASSWORD", "tall secret/@:?")
    one = opened(stopped_server.url)
    one.keep(KEY, MADE)
    monkeypatch.setenv("REDIS_USERNAME", "default")
    assert opened(f"redis://127.0.0.1:{stopped_server.port}/0").claim(KEY, 30) == MADE
    monkeypatch.setenv("REDIS_PASSWORD", "wrong")
    stranger = opened(stopped_server.url)
    assert stranger.claim(KEY, 30) is Claim.MINE
    assert stranger.is_resting


def test_a_user_needs_these_rights_alone(
    stopped_server: RedisServer, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    rights = ("~qtm:*", "+eval", "+get", "+set", "+strlen", "+rename", "+del")
    stopped_server.start("--user", "app", "on", ">sesame", *rights)
    monkeypatch.setenv("REDIS_USERNAME", "app")
    monkeypatch.setenv("REDIS_PASSWORD", "sesame")
    cache = opened(stopped_server.url)
    stopped_server.admin.set(NAME, "junk")
    assert cache.claim(KEY, 30) is Claim.MINE
    cache.keep(KEY, MADE)
    assert cache.claim(KEY, 30) == MADE
    assert kept(stopped_server) == {NAME, f"{NAME}:corrupt"}
    assert not cache.is_resting


def test_an_encrypted_connection_is_made_where_the_certificate_is_known(
    stopped_server: RedisServer, opened: Open, certificate: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    pem, key = map(str, certificate)
    with_tls = ("--tls-cert-file", pem, "--tls-key-file", key, "--tls-ca-cert-file", pem, "--tls-auth-clients", "no")
    stopped_server.start("--port", "0", "--tls-port", str(stopped_server.port), *with_tls)
    url = f"rediss://127.0.0.1:{stopped_server.port}/0"
    known = opened(f"{url}?ssl_ca_certs={pem}")
    known.keep(KEY, MADE)
    assert known.claim(KEY, 30) == MADE
    unknown = opened(url)
    assert unknown.claim(KEY, 30) is Claim.MINE
    assert unknown.is_resting


@pytest.mark.parametrize(
    ("options", "reqs", "checks"),
    [
        ("", "required", True),
        ("?ssl_ca_certs=ca.pem", "required", True),
        ("?ssl_cert_reqs=optional", "optional", True),
        ("?ssl_cert_reqs=none", "none", False),
        ("?ssl_check_hostname=false", "required", False),
    ],
)
def test_certificate_and_host_name_are_checked_whatever_the_client_does_by_default(
    options: str, reqs: str, checks: bool
) -> None:
    set_ = RedisAddress(f"rediss://host{options}").client(1.0).connection_pool.connection_kwargs
    assert (set_["ssl_cert_reqs"], set_["ssl_check_hostname"]) == (reqs, checks)


def test_a_certificate_of_another_name_is_refused(
    stopped_server: RedisServer, opened: Open, certificate: tuple[Path, Path]
) -> None:
    pem, key = map(str, certificate)
    with_tls = ("--tls-cert-file", pem, "--tls-key-file", key, "--tls-ca-cert-file", pem, "--tls-auth-clients", "no")
    stopped_server.start("--port", "0", "--tls-port", str(stopped_server.port), *with_tls)
    cache = opened(f"rediss://127.0.0.2:{stopped_server.port}/0?ssl_ca_certs={pem}")
    assert cache.claim(KEY, 30) is Claim.MINE
    assert cache.is_resting


@pytest.mark.parametrize("option", ["ssl_cert_reqs=perhaps", "ssl_cert_reqs=None", "ssl_check_hostname=perhaps"])
def test_a_wrong_option_of_tls_fails_the_check_of_the_config(option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.load({"cache": {"redisUrl": f"rediss://host?{option}"}}, environ={})
    assert caught.value.path == "cache.redisUrl"


def test_no_plain_word_is_said_where_an_encrypted_connection_is_asked_for(server: RedisServer, opened: Open) -> None:
    cache = opened(f"rediss://127.0.0.1:{server.port}", timeout=0.1)
    assert cache.claim(KEY, 30) is Claim.MINE
    assert cache.is_resting


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
    urls = [stopped_server.url, f"redis://127.0.0.1:{stopped_server.port}", "redis://127.0.0.1:1", "redis://a..b"]
    urls += [impostor(answer).url for answer in (b"junk sesame\r\n", b"-ERR sesame\r\n", b"+OK\r\n-ERR sesame\r\n")]
    shown = ""
    for url in urls:
        cache = opened(url, breaker=Breaker(1, 0.001))
        for _ in range(3):
            cache.claim(KEY, 30)
            cache.keep(KEY, MADE)
            cache.release(KEY)
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
        *("redis://host:0", "redis://host:70000", "redis://host:port", "redis://host/name", "redis://host/0/1"),
        *("redis://host?db=a", "redis://host?timeout=5", "redis://host?protocol=3", "redis://host#0", " redis://host"),
        *("redis://[::1", "redis://host?ssl_ca_certs=a.pem", "rediss://host?ssl_unknown=1", "redis://host?db"),
        *("rediss://host?ssl_cert_reqs=perhaps", "unix://", "unix:///", "unix://relative/redis.sock", "redis://ho st"),
    ],
)
def test_an_address_that_cannot_be_used_is_told(opened: Open, url: str) -> None:
    with pytest.raises(ConfigError, match="allowed are redis://host:6379/0") as caught:
        opened(url)
    assert caught.value.path == "cache.redisUrl"


@pytest.mark.parametrize(
    "url",
    [
        *("redis://:sesame@host", "redis://sesame@host", "redis://sesame:@host/0", "redis://host?password=sesame"),
        *("redis://u:se/sesame@host", "redis://u:sesame?a@host", "redis://u:sesame#a@host", "redis://u:12/sesame@host"),
        *("unix://sesame@/a.sock", "unix:///a.sock?username=sesame", "rediss://host?ssl_password=sesame"),
        *("redis://u:sesame[@host", "redis://u:\nsesame@host", "redis://u:a:sesame@host:12"),
    ],
)
def test_an_address_with_a_secret_is_refused_without_showing_it(opened: Open, url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        opened(url)
    assert "sesame" not in f"{caught.value} {caught.value!r} {vars(caught.value)}"


def test_without_the_client_of_redis_the_extra_is_named(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingExtra, match=r"qtmiddleware\[redis\]"):
        opened("redis://localhost")


# What it takes


def test_no_more_connections_are_held_than_it_may_and_none_when_closed(server: RedisServer, opened: Open) -> None:
    cache = opened(server.url, timeout=20.0)
    threads = threading.active_count()
    with ThreadPoolExecutor(100) as pool:
        list(pool.map(lambda it: cache.claim(f"key {it}", 30), range(1_000)))
    assert len(server.admin.client_list()) <= 1 + redis_cache._CONNECTIONS
    assert len(kept(server)) == 1_000
    cache.close()
    cache.close()
    while len(server.admin.client_list()) > 1:
        sleep(0.005)
    assert threading.active_count() == threads
    cache.keep(KEY, MADE)
    assert cache.claim(KEY, 30) == MADE


@pytest.mark.parametrize("answer", [None, b"", b"junk\r\n", b"-ERR\r\n"])
def test_failures_leave_nothing_open(impostor: Pose, opened: Open, answer: bytes | None) -> None:
    server = impostor(answer)
    cache = opened(server.url, timeout=0.01 if answer is None else 5.0, breaker=Breaker(0, 1.0))
    for _ in range(20):
        assert cache.claim(KEY, 30) is Claim.MINE
    cache.close()
    while not (server.connections and server.has_been_left()):
        sleep(0.005)
