"""Limits that all processes share: one script on the Redis server for each step, by the server's clock, every key with an expiry."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Protocol, cast

from workers import broker, queues
from workers.limits import rules
from workers.limits.rules import Closing, Outcome, Rule, Said, Standing, Take

PREFIX = f"{queues.PREFIX}limit."
ANSWER_S = 1.0
"""Nobody waits longer for a limit to be told; after that this process keeps its own."""

_HEAD = """
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local key, slots = KEYS[1], KEYS[2]
local function int(v) return string.format('%.0f', v) end
local function num(v) return tonumber(v or 0) or 0 end
local function keep(until_us)
  redis.call('PEXPIRE', key, int(math.min(KEEP_MOST, math.max(KEEP, until_us - now + 60000000)) / 1000))
end
"""

TAKE = (
    _HEAD
    + """
local rate, burst, tpm, most = num(ARGV[1]), num(ARGV[2]), num(ARGV[3]), num(ARGV[4])
local holder, tokens, patience, paid = ARGV[5], num(ARGV[6]), num(ARGV[7]), ARGV[8] == '1'
local s = redis.call('HMGET', key, 'closed', 'why', 'probe', 'turn', 'tokens', 'cap', 'cap_at', 'top', 'share', 'since', 'count', 'fails', 'strikes')
local closed, probe = num(s[1]), num(s[3])
if closed > now then return {s[2], closed - now, 0, 0} end
if closed > 0 and probe > now then return {'probing', probe - now, 0, 0} end
local wait = 0
if not paid then
  local cap = num(s[6])
  if cap > 0 then
    local steps = math.floor((now - num(s[7])) / QUIET)
    if steps > 0 then
      cap = cap * GROWTH ^ math.min(steps, 1000)
      if cap >= num(s[8]) then
        cap = 0
        redis.call('HDEL', key, 'cap', 'cap_at', 'top')
      else
        redis.call('HSET', key, 'cap', tostring(cap), 'cap_at', int(num(s[7]) + steps * QUIET))
      end
    end
    if cap > 0 and (rate == 0 or rate >= cap) then rate, burst = cap, 1 end
  end
  local start, token_start = now, now
  if rate > 0 then start = math.max(num(s[4]), now - (burst - 1) * 1000000 / rate) end
  if tpm > 0 then token_start = math.max(num(s[5]), now) end
  wait = math.max(start - now, token_start - now, 0)
  if wait > patience then return {'rate', math.ceil(wait), 0, 0} end
  local full = now
  if rate > 0 then
    redis.call('HSET', key, 'turn', int(start + 1000000 / rate))
    full = start + burst * 1000000 / rate
  end
  if tpm > 0 then
    local turn = token_start + tokens * 60000000 / tpm
    redis.call('HSET', key, 'tokens', int(turn))
    full = math.max(full, turn)
  end
  local since = num(s[10])
  if now - since >= 1000000 then
    local before = now - since < 2000000 and num(s[11]) * 1000000 / (now - since) or 0
    redis.call('HSET', key, 'since', int(now), 'count', 1, 'before', tostring(before))
    keep(full)
  else
    redis.call('HINCRBY', key, 'count', 1)
  end
  local share = num(s[9])
  if share > 0.001 then redis.call('HSET', key, 'share', string.format('%.5f', share * (1 - SMOOTH))) end
end
if wait > 0 then return {'later', math.ceil(wait), 0, 0} end
if most > 0 then
  redis.call('ZREMRANGEBYSCORE', slots, '-inf', int(now))
  if not redis.call('ZSCORE', slots, holder) and redis.call('ZCARD', slots) >= most then
    return {'slots', num(redis.call('ZRANGE', slots, 0, 0, 'WITHSCORES')[2]) - now, 0, 0}
  end
  redis.call('ZADD', slots, int(now + LEASE), holder)
  redis.call('PEXPIRE', slots, int(2 * LEASE / 1000))
end
if closed > 0 then
  redis.call('HSET', key, 'probe', int(now + PROBE))
  keep(now)
  return {'go', 0, 1, 1}
end
return {'go', 0, 0, (num(s[12]) > 0 or num(s[13]) > 0) and 1 or 0}
"""
)

REPORT = (
    _HEAD
    + """
local rate, tpm, holder, outcome = num(ARGV[1]), num(ARGV[3]), ARGV[5], ARGV[6]
local after, tokens, probe = ARGV[7] ~= '' and num(ARGV[7]) or nil, num(ARGV[8]), ARGV[9] == '1'
if num(ARGV[4]) > 0 then redis.call('ZREM', slots, holder) end
if tokens ~= 0 and tpm > 0 and redis.call('HEXISTS', key, 'tokens') == 1 then
  redis.call('HINCRBY', key, 'tokens', int(math.floor(tokens * 60000000 / tpm)))
end
if probe then redis.call('HDEL', key, 'probe') end
if outcome == 'broken_off' then return {0, 0} end
local s = redis.call(
  'HMGET', key, 'closed', 'why', 'fails', 'failed_at', 'cool', 'strikes', 'share', 'cap', 'cap_at', 'top', 'since', 'count', 'before'
)
local closed = num(s[1])
local function close(until_us, why)
  redis.call('HSET', key, 'closed', int(until_us), 'why', why)
  keep(until_us)
  return {int(until_us - now), closed > 0 and 0 or 1}
end
if outcome == 'answered' then
  if probe and closed <= now then
    redis.call('HDEL', key, 'closed', 'why', 'cool')
    closed = 0
  end
  if closed == 0 then redis.call('HDEL', key, 'fails', 'failed_at', 'strikes') end
  return {0, 0}
end
if outcome == 'failed' then
  if closed > 0 and not probe then return {int(math.max(0, closed - now)), 0} end
  local cool = COOL
  if probe then
    cool = num(s[5]) > 0 and math.min(COOL_MOST, 2 * num(s[5])) or COOL
  else
    local fails = now - num(s[4]) < FAILING and num(s[3]) + 1 or 1
    redis.call('HSET', key, 'fails', fails, 'failed_at', int(now))
    keep(now)
    if fails < FAILURES and not after then return {0, 0} end
  end
  redis.call('HSET', key, 'cool', int(cool))
  return close(now + (after and math.min(after, CLOSED_MOST) or cool), 'down')
end
local strikes = num(s[6])
if probe or closed <= now then strikes = strikes + 1 end
local share = num(s[7]) * (1 - SMOOTH) + SMOOTH
redis.call('HDEL', key, 'fails', 'failed_at')
redis.call('HSET', key, 'strikes', strikes, 'share', string.format('%.5f', share))
if not after then
  after = outcome == 'quota' and QUOTA or math.min(PAUSE_MOST, PAUSE * 2 ^ math.min(math.max(0, strikes - 1), 16))
end
local till = math.max(closed, now + math.min(after, CLOSED_MOST))
if share > SHARE and now >= num(s[9]) and not probe then
  local age = now - num(s[11])
  local seen = age < 2000000 and math.max(num(s[12]) * 1000000 / math.max(age, GLANCE), num(s[13])) or 0
  local taken = num(s[8])
  if taken == 0 then taken = rate > 0 and math.min(seen, rate) or seen end
  local top = num(s[10])
  if top == 0 then top = rate > 0 and rate or math.max(2 * seen, 2 * SLOWEST) end
  redis.call('HSET', key, 'cap', tostring(math.max(SLOWEST, taken / 2)), 'cap_at', int(till), 'top', tostring(top))
end
if till > closed or probe then return close(till, outcome) end
return {int(till - now), 0}
"""
)

CLOSE = (
    _HEAD
    + """
local till = now + math.min(num(ARGV[1]), CLOSED_MOST)
if till > num(redis.call('HGET', key, 'closed')) then redis.call('HSET', key, 'closed', int(till), 'why', 'throttled') end
keep(till)
return {0, 0}
"""
)

RENEW = (
    _HEAD
    + """
for _, holder in ipairs(ARGV) do redis.call('ZADD', slots, int(now + LEASE), holder) end
redis.call('PEXPIRE', slots, int(2 * LEASE / 1000))
return {0, 0}
"""
)

LOOK = (
    _HEAD
    + """
local s = redis.call('HMGET', key, 'closed', 'why', 'turn', 'tokens')
local closed = num(s[1])
return {closed > 0 and s[2] or '', int(math.max(0, closed - now)), int(math.max(0, num(s[3]) - now, num(s[4]) - now))}
"""
)


def _numbers() -> str:
    """The numbers of `rules` as Lua's locals, times in microseconds."""
    times_s = {
        "KEEP_MOST": rules.KEEP_MOST_S,
        "KEEP": rules.KEEP_S,
        "QUIET": rules.QUIET_S,
        "GLANCE": rules.GLANCE_S,
        "LEASE": rules.LEASE_S,
        "PROBE": rules.PROBE_S,
        "COOL_MOST": rules.COOL_MOST_S,
        "COOL": rules.COOL_S,
        "FAILING": rules.FAILING_S,
        "CLOSED_MOST": rules.CLOSED_MOST_S,
        "QUOTA": rules.QUOTA_S,
        "PAUSE_MOST": rules.PAUSE_MOST_S,
        "PAUSE": rules.PAUSE_S,
    }
    others = {"GROWTH": rules.GROWTH, "SHARE": rules.SHARE, "SMOOTH": rules.SMOOTH, "SLOWEST": rules.SLOWEST, "FAILURES": rules.FAILURES}
    numbers = {name: f"{value * 1e6:.0f}" for name, value in times_s.items()} | {name: repr(value) for name, value in others.items()}
    return "\n".join(f"local {name} = {value}" for name, value in numbers.items())


class Scripts(Protocol):
    """The part of redis-py that is used here."""

    def evalsha(self, sha: str, numkeys: int, *keys_and_args: str | float) -> object: ...

    def eval(self, script: str, numkeys: int, *keys_and_args: str | float) -> object: ...

    def scan_iter(self, match: str, count: int) -> Iterator[bytes]: ...

    def close(self) -> None: ...


class _Script:
    """One script with the numbers of `rules` put before it; times become microseconds."""

    def __init__(self, text: str) -> None:
        self.text = _numbers() + text
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


class RedisBuckets:
    """`Buckets` on a Redis or Valkey server. Connects at first use; every method raises Unavailable when the server is away."""

    def __init__(self, url: str) -> None:
        self._client = cast("Scripts", broker.connect(url, answer_s=ANSWER_S))
        self._take, self._report, self._close = _Script(TAKE), _Script(REPORT), _Script(CLOSE)
        self._renew, self._look = _Script(RENEW), _Script(LOOK)

    def take(self, scope: str, rule: Rule, holder: str, *, tokens: int, patience_s: float, paid: bool) -> Take:
        """See `Buckets`."""
        said, wait, probe, watched = self._run(
            self._take, scope, rule.rate, rule.burst, rule.tpm, rule.slots, holder, tokens, f"{patience_s * 1e6:.0f}", int(paid)
        )
        return Take(Said(_text(said)), max(0, int(wait)) / 1e6, bool(probe), bool(watched))

    def report(self, scope: str, rule: Rule, holder: str, outcome: Outcome, *, after_s: float | None, tokens: int, probe: bool) -> Closing:
        """See `Buckets`."""
        after = "" if after_s is None else f"{after_s * 1e6:.0f}"
        numbers = (rule.rate, rule.burst, rule.tpm, rule.slots)
        left, newly = self._run(self._report, scope, *numbers, holder, outcome.value, after, tokens, int(probe))[:2]
        return Closing(int(left) / 1e6, bool(int(newly)))

    def close_for(self, scope: str, seconds: float) -> None:
        """See `Buckets`."""
        self._run(self._close, scope, f"{seconds * 1e6:.0f}")

    def renew(self, scope: str, holders: list[str]) -> None:
        """See `Buckets`."""
        self._run(self._renew, scope, *holders)

    def look(self, scope: str) -> Standing:
        """See `Buckets`."""
        why, left, debt = self._run(self._look, scope)
        return Standing(_text(why), int(left) / 1e6, int(debt) / 1e6)

    def scopes(self) -> list[str]:
        """Every scope that anybody has used lately."""
        with broker.typed():
            found = list(self._client.scan_iter(f"{PREFIX}*.state", count=1000))
        return [name.decode().removeprefix(PREFIX).removesuffix(".state") for name in found]

    def close(self) -> None:
        self._client.close()

    def _run(self, script: _Script, scope: str, *arguments: str | float) -> list[Any]:
        from redis.exceptions import NoScriptError

        keys = (f"{PREFIX}{scope}.state", f"{PREFIX}{scope}.slots")
        with broker.typed():
            try:
                return cast("list[Any]", self._client.evalsha(script.sha, 2, *keys, *arguments))
            except NoScriptError:
                return cast("list[Any]", self._client.eval(script.text, 2, *keys, *arguments))


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
