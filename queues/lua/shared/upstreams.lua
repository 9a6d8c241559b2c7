-- Upstreams: the servers behind a model's workers, each with a breaker and a hold of its own. A worker names its upstream, and a name is
-- one of the worker's token; the workers that name none, or have no token of their own, share ''. What happens through workers of every model (the line of '*') is not counted: names are for callers to choose.
--
-- A breaker is closed, open, or half-open. Closed, the outcomes of attempts are remembered from a failure on, for a window of time;
-- where enough of them are failures, and half of all, it opens: nothing of the model starts through the upstream for a while. When
-- that is over it is half-open: a few tasks at a time may start, its probes. As many that go well close it; one that fails opens it
-- again, for twice as long. Only failures that an upstream is to blame for count (BLAMES_UPSTREAM).
-- What began before it opened counts for nothing, whatever it comes to.
-- (Nygard, Release It!, 2007, has the pattern; the bounds are near those of resilience4j and Finagle.)
local upstreams = {}
do
local FAILURES, WINDOW, OPEN = 5, 60000, 5000 -- where the model sets none: how many, in which time (ms), open for so long (ms)
local MAX_OPEN = 60000 -- it is never open for longer, unless OPEN is set to more
local PROBES = 2 -- at a time; and as many have to succeed
local KEPT = 100 -- outcomes
local MAX_STORED = 1000 -- upstreams with a stored state
local MAX_OF_MODEL = 100 -- the same for one model: its workers choose their names
local MAX_LOOKED_AT = 256 -- of one model, over all replicas
local MAX_HELD, UNTRIED = 3600000, 3600000

-- Where the upstreams of a model are among those with a stored state.
local function span_of(m) return '[' .. m .. '\n', '(' .. m .. '\v' end

-- Begin to remember something of an upstream (`bars`: not only outcomes); false: there are too many of them.
local function mark(m, up, bars)
  local member = m .. '\n' .. up
  if not call('ZSCORE', keys.upstreams(), member) then
    if call('ZCARD', keys.upstreams()) >= MAX_STORED or call('ZLEXCOUNT', keys.upstreams(), span_of(m)) >= MAX_OF_MODEL then return false end
    call('ZADD', keys.upstreams(), '0', member)
  end
  if bars then call('HSET', keys.model(m), 'upstream_state', '2') else call('HSETNX', keys.model(m), 'upstream_state', '1') end
  return true
end

-- Publish the change of a breaker to the replicas with workers for the model; `by` is the one that writes it into its log.
local function announce(m, up, what, why, ms, by)
  local message = 'breaker\n' .. table.concat({ what, whole(ms), by or '', why, m, up }, '\n')
  local told = {}
  for _, offered in ipairs(offered_as(m)) do
    for _, replica in ipairs(call('ZRANGEBYSCORE', keys.offers(offered), '(' .. NOW_TEXT, '+inf', 'LIMIT', '0', '64')) do
      if not told[replica] then publish(replica, message) end
      told[replica] = true
    end
  end
  if by and by ~= '' and not told[by] then publish(by, message) end
end

-- How many tasks probe an upstream.
local function probes_of(m, up) return call('SCARD', keys.probes(m, up)) end

-- Until when (ms) nothing of a model starts through an upstream, and why: 'cooldown' its provider said so, 'open', or 'probing': as many
-- probes as may are under way, so that a look in a second is enough. 0: something may, 'probe' if it is to be one.
function upstreams.state_of(m, up)
  local s = call('HMGET', keys.upstream(m, up), 'cooldown_until', 'till', 'forced')
  local held, till, forced = num(s[1]), num(s[2]), s[3]
  if forced == 'open' then return FOREVER, 'open' end
  if forced ~= 'closed' and till > NOW then return math.max(held, till), 'open' end
  if held > NOW then return held, 'cooldown' end
  if forced == 'closed' or till == 0 then return 0 end
  if probes_of(m, up) >= PROBES then return NOW + 1000, 'probing' end
  return 0, 'probe'
end

-- The upstreams of the workers that may run a model.
function upstreams.of(m)
  local found, known = {}, {}
  for _, offered in ipairs(offered_as(m)) do
    local live = call('ZRANGEBYSCORE', keys.serving(offered), '(' .. NOW_TEXT, '+inf', 'LIMIT', '0', MAX_LOOKED_AT)
    if not live[1] and call('ZCOUNT', keys.offers(offered), '(' .. NOW_TEXT, '+inf') > 0 then live[1] = '\n' end
    for _, member in ipairs(live) do
      local up = string.match(member, '^(.*)\n')
      if not known[up] then found[#found + 1] = up end
      known[up] = true
    end
  end
  return found
end

-- The same over all upstreams of a model: the earliest. 'open' where all of them are, 'probing' where all are either, else 'cooldown'.
function upstreams.blocked_until(m)
  local least, open, broken = FOREVER, true, true
  local all = upstreams.of(m)
  for _, up in ipairs(all) do
    local at, why = upstreams.state_of(m, up)
    if at == 0 then return 0 end
    least, open, broken = math.min(least, at), open and why == 'open', broken and why ~= 'cooldown'
  end
  if not all[1] then return 0 end
  return least, open and 'open' or broken and 'probing' or 'cooldown'
end

-- Whether all upstreams of a model are open, and were probed in vain or are to be so.
function upstreams.exhausted(m)
  local all = upstreams.of(m)
  for _, up in ipairs(all) do
    local s = call('HMGET', keys.upstream(m, up), 'till', 'number', 'forced')
    if s[3] ~= 'open' and (s[3] or num(s[1]) <= NOW or num(s[2]) < 2) then return false end
  end
  return all[1] ~= nil
end

-- How many outcomes WINDOW has, and how many of them are failures.
local function count_outcomes(list)
  local number, failures = 0, 0
  for _, entry in ipairs(call('LRANGE', list, '0', '-1')) do
    local at, good = string.match(entry, '^(%d+) ([01])$')
    if tonumber(at) > NOW - WINDOW then
      number = number + 1
      if good == '0' then failures = failures + 1 end
    end
  end
  return number, failures
end

-- Whether a failure shows that the upstream works (true), or that it does not; nil: neither. An answer that cannot be read is its own
-- fault, but where it had to match something: then it may be the model's.
function upstreams.verdict_of(id, code)
  if code == 'JSON_PARSE_FAILED' then return call('HEXISTS', keys.task(id), 'schema') == 1 end
  if PROVES_UPSTREAM_WORKS[code] then return true end
  if BLAMES_UPSTREAM[code] then return false end
  return nil
end

-- An attempt of a task has an outcome that shows how its upstream is: `good`, or why not. `books`: as `read_books` gives them,
-- where something went well: most of the time there is nothing to remember then.
function upstreams.note(t, good, why, books)
  local m, up = t.model, t.upstream or ''
  if good and books and not books.ups and not t.probe then return end
  if m == '*' then return end
  local hash, list = keys.upstream(m, up), keys.outcomes(m, up)
  local till, number, forced = unpack(call('HMGET', hash, 'till', 'number', 'forced'))
  if forced or (till and not t.probe) or (till and good and t.probe == '2') then return end
  local entry = NOW_TEXT .. (good and ' 1' or ' 0')
  if good and not till then -- which opens and closes nothing
    if call('LPUSHX', list, entry) > KEPT then call('LTRIM', list, '0', whole(KEPT - 1)) end
    return
  end
  local s = call('HMGET', keys.model(m), 'breaker_failures', 'breaker_open_ms')
  local most, open_ms = s[1] and num(s[1]) or FAILURES, s[2] and num(s[2]) or OPEN
  if most == 0 or not mark(m, up) then return end
  call('LPUSH', list, entry)
  call('LTRIM', list, '0', whole(KEPT - 1))
  call('PEXPIRE', list, whole(WINDOW))
  local counted, failures = count_outcomes(list)
  local bad = failures * 2 >= counted
  if till and not bad and counted - failures >= PROBES then
    call('HDEL', hash, 'till', 'since', 'number', 'why')
    call('DEL', list)
    announce(m, up, 'closed', '', 0, t.owner)
  elseif not good and bad and (till and num(till) <= NOW or not till and failures >= most) then
    local times = num(number)
    local ms = math.min(open_ms * 2 ^ times, math.max(MAX_OPEN, open_ms))
    mark(m, up, true)
    call('HSET', hash, 'till', whole(NOW + ms), 'number', whole(times + 1), 'why', why)
    if not till then
      call('HSET', hash, 'since', NOW_TEXT)
      call('DEL', list)
    end
    announce(m, up, 'open', why, ms, t.owner)
  end
end

-- A probe has its first output: it need not end for that its upstream works. What fails it later counts all the same.
-- Returns the model, as another task of it may start now.
function upstreams.answers(id)
  local t = load(id)
  upstreams.note(t, true, '')
  call('HSET', keys.task(id), 'probe', '2')
  upstreams.end_probe(id, t)
  return t.model
end

-- A task begins as a probe.
function upstreams.begin_probe(id, t)
  call('SADD', keys.probes(t.model, t.upstream or ''), id)
  announce(t.model, t.upstream or '', 'probing', '', 0, t.owner)
end

function upstreams.end_probe(id, t) call('SREM', keys.probes(t.model, t.upstream or ''), id) end

-- Hold a model or an upstream, by its hash, until at least then (ms). `by`: the worker that its provider asked for that.
function upstreams.extend_hold(hash, until_ms, by)
  if until_ms > num(call('HGET', hash, 'cooldown_until')) then
    call('HSET', hash, 'cooldown_until', whole(until_ms), 'cooldown_by', by or '')
  end
end

-- Nothing of a model starts through an upstream for `ms`: its provider asked for that. False: there are too many of them.
function upstreams.hold(m, up, ms, by)
  if not mark(m, up, true) then return false end
  upstreams.extend_hold(keys.upstream(m, up), NOW + math.min(ms, MAX_HELD), by)
  return true
end

-- An operator has a breaker 'open' or 'closed', or it goes by itself again: 'auto', from closed on. Returns what was said before; nil:
-- there are too many of them.
function upstreams.force(m, up, state, by)
  local hash = keys.upstream(m, up)
  local before = call('HGET', hash, 'forced') or 'auto'
  if not mark(m, up, true) then return nil end
  call('HDEL', hash, 'till', 'since', 'number', 'why', 'cooldown_until', 'cooldown_by')
  call('DEL', keys.outcomes(m, up))
  if state == 'auto' then
    call('HDEL', hash, 'forced')
  else
    call('HSET', hash, 'forced', state, 'since', NOW_TEXT)
  end
  announce(m, up, state == 'open' and 'open' or 'closed', 'FORCED', 0, by)
  return before
end

-- What the model's hash says of its upstreams: that of all of them.
local function update_state(m)
  local bars, known = false, call('ZRANGEBYLEX', keys.upstreams(), span_of(m))
  for _, member in ipairs(known) do
    bars = bars or call('EXISTS', keys.upstream(m, string.sub(member, #m + 2))) == 1
  end
  if not known[1] then
    call('HDEL', keys.model(m), 'upstream_state')
  elseif not bars then
    call('HSET', keys.model(m), 'upstream_state', '1')
  end
end

-- Remove what is outdated, of a hundred upstreams: also a breaker that was not probed for an hour.
function upstreams.tidy()
  local changed = {}
  for _, member in ipairs(call('ZRANDMEMBER', keys.upstreams(), '100') or {}) do
    local m, up = string.match(member, '^([^\n]*)\n(.*)$')
    local hash = keys.upstream(m, up)
    local s = call('HMGET', hash, 'cooldown_until', 'till')
    if s[2] and num(s[2]) < NOW - UNTRIED and probes_of(m, up) == 0 then
      call('HDEL', hash, 'till', 'since', 'number', 'why')
    end
    if num(s[1]) <= NOW and s[1] then call('HDEL', hash, 'cooldown_until', 'cooldown_by') end
    local list = keys.outcomes(m, up)
    local last = string.match(call('LINDEX', list, '0') or '', '^%d+')
    if last and tonumber(last) <= NOW - WINDOW then call('DEL', list) end
    if call('EXISTS', hash, list) == 0 then call('ZREM', keys.upstreams(), member) end
    if call('EXISTS', hash) == 0 then changed[m] = true end
  end
  for m in pairs(changed) do update_state(m) end
end
end
