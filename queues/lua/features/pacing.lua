-- Pacing: how often a model can start tasks. Three limits apply, and the latest instant counts:
--   a cooldown         its provider asked for no request before `cooldown_until` (in the model's state);
--   windows            the target gets at most N requests within any interval of a length, over all replicas and workers: the setting
--                      `windows` (`50/1s, 1000/1m`), and for `requests_per_minute` a window with one request;
--   tokens_per_minute  no minute has more tokens. A task with more tokens than that waits until no other task counts.
--
-- In a window, an attempt counts from its grant until one window after its request is known to have left, or its end is known. While neither
-- is known, it counts. So a window is never exceeded. Proof: assume that more requests than allowed came within a window, and take the
-- attempt among them that was granted last. The others were granted before. Their requests came within that window, so they were known to have
-- left no earlier than that, and one window later was not over when the last request came, nor when it was granted. So all others
-- counted, and the last attempt would not have been granted.
--
-- Each model has one set: attempt -> the instant (us) at which its request was known to have left; FOREVER: it is not known.
local pacing = {}
local UNITS = { us = 1, ms = 1000, s = 1000000, m = 60000000, h = 3600000000 }
local MINUTE, DAY = 60, 86400000
local MAX_ALONE = 3 -- after this number of 429 answers to one task, the task alone waits

-- Return the windows of a text: a list of {requests, us}, and the longest, us.
local parse = memoize(function(text)
  local list = { longest = 0 }
  for requests, number, unit in string.gmatch(text, '(%d+)%s*/%s*(%d+)%s*(%a+)') do
    local us = tonumber(number) * UNITS[unit]
    list[#list + 1] = { tonumber(requests), us }
    list.longest = math.max(list.longest, us)
  end
  return list
end)

local function windows_of(settings)
  local text = settings.windows or ''
  if settings.requests_per_minute then text = text .. ' 1/' .. whole(math.ceil(UNITS.m / settings.requests_per_minute)) .. 'us' end
  return text ~= '' and parse(text) or nil
end

local function member(task) return task.id .. ':' .. whole(task.epoch) end

-- Return the earliest instant (us) at which the n-th task from now can start by a model's windows; 0: now. Return also whether this depends on
-- a request that is not known to have left: then it can be later.
local function free_at(name, list, n)
  local key, at, open = keys.windows(name), 0, false
  for _, window in ipairs(list) do
    local most, us = window[1], window[2]
    local rounds = math.floor((n - 1) / most) -- full windows that the tasks before it take
    local place = whole(most - (n - rounds * most)) -- rank from the end of the attempt whose window must be over
    local left = tonumber(call('ZREVRANGE', key, place, place, 'WITHSCORES')[2])
    if left and left >= FOREVER then open, left = true, US end
    if left and left + us > US then
      at = math.max(at, left + us + rounds * us)
    elseif rounds > 0 then
      at = math.max(at, US + rounds * us)
    end
  end
  return at, open
end

-- Return the instant (ms) from which a task of this many tokens fits into the last minute; nil: now.
local function tokens_at(name, limit, tokens)
  local flat, seconds, total = call('HGETALL', keys.spent(name)), {}, 0
  local now_s = math.floor(US / 1000000)
  for i = 1, #flat, 2 do
    local second = tonumber(flat[i])
    if second > now_s - MINUTE - 1 then
      seconds[#seconds + 1] = { second, tonumber(flat[i + 1]) }
      total = total + seconds[#seconds][2]
    end
  end
  table.sort(seconds, function(a, b) return a[1] < b[1] end)
  local at
  for _, second in ipairs(seconds) do -- wait until enough of the last minute is over
    if total <= 0 or total + tokens <= limit then break end
    total, at = total - second[2], (second[1] + MINUTE + 1) * 1000
  end
  return at and at > NOW and at or nil
end

-- Return the instant (ms) from which the n-th task from now can start, and why; nil: now. 'unsent': it can be later, because requests are not
-- known to have left; their report wakes a replica.
function pacing.opens(model, name, n)
  local at = model.cooldown_until and model.cooldown_until > NOW and model.cooldown_until or 0
  local why = at > 0 and 'cooldown' or nil
  local list = windows_of(model)
  if list then
    local us, open = free_at(name, list, n or 1)
    if open then why = 'unsent' end
    if us > US then at = math.max(at, NOW + math.ceil((us - US) / 1000)) end
  end
  if model.tokens_per_minute then at = math.max(at, tokens_at(name, model.tokens_per_minute, 1) or 0) end
  if at == 0 then return nil end
  return at, why
end

hooks.attach('opens', 'paced', pacing.opens)

hooks.attach('admit', 'paced', function(task)
  local wait = (models.get(task.model).cooldown_until or 0) - NOW
  if not task.timeout_ms or task.fallbacks or wait <= task.timeout_ms then return nil end
  return { rejected = 'too_long', waiting = wait, limit = task.timeout_ms, retry_ms = wait }
end, true)

local function expected_tokens(task, model)
  return math.floor((task.input_tokens or 0) + granting.expected_output(task, model, lanes.user_of(task)) + 0.5)
end

hooks.attach('may_start', 'tokens_per_minute', function(task)
  local model = models.get(task.model)
  local at = tokens_at(task.model, model.tokens_per_minute, expected_tokens(task, model))
  return at and { at = at } or nil
end, true)

local function spend(name, second, tokens)
  local key = keys.spent(name)
  call('HINCRBY', key, whole(second), whole(tokens))
  call('PEXPIRE', key, '120000')
  for _, other in ipairs(call('HKEYS', key)) do
    if tonumber(other) < US / 1000000 - MINUTE - 1 then call('HDEL', key, other) end
  end
end

hooks.attach('granted', 'paced', function(task, model)
  local list = windows_of(model)
  if list then
    local key = keys.windows(task.model)
    call('ZREMRANGEBYSCORE', key, '-inf', whole(US - list.longest))
    call('ZADD', key, model.windows and whole(FOREVER) or US_TEXT, member(task))
    call('PEXPIRE', key, whole(list.longest / 1000 + DAY))
    task.report_sent = model.windows and true or nil
  end
  if model.tokens_per_minute then
    task.paced_tokens = expected_tokens(task, model)
    spend(task.model, math.floor(US / 1000000), task.paced_tokens)
  end
end, true)

-- Note that the request of an attempt has left, or will have left at an instant (us).
function pacing.note_sent(task, at) call('ZADD', keys.windows(task.model), 'XX', 'LT', whole(at), member(task)) end

-- Note that the request of an attempt never left, so it does not count.
function pacing.forget(task) call('ZREM', keys.windows(task.model), member(task)) end

hooks.attach('released', 'report_sent', function(task) pacing.note_sent(task, US) end) -- an attempt is over: it has left by now

hooks.attach('settled', 'paced_tokens', function(task, used)
  local more = used and used.input and used.output and used.input + used.output - task.paced_tokens or used == nil and 0 - task.paced_tokens or 0
  task.paced_tokens = nil
  if more ~= 0 then spend(task.model, more > 0 and math.floor(US / 1000000) or math.floor(task.granted_at / 1000), more) end
end)

-- The provider asked for a pause. If it answers the same task with 429 repeatedly, it may mean that task alone: then this task is set
-- aside, longer each time, and the others continue.
hooks.attach('failed', nil, function(task, back)
  if back.unsent and task.report_sent then pacing.forget(task) end
  if not back.hold_ms then return end
  back.held = true
  task.throttled = (task.throttled or 0) + 1
  if task.throttled > MAX_ALONE then
    local alone = math.min(math.max(back.hold_ms, 1000) * (task.throttled - MAX_ALONE), 300000)
    back.aside_until = NOW + math.max(back.hold_ms, alone)
  elseif task.requested_model or not (upstreams and task.upstream) or not upstreams.hold(task.model, task.upstream, NOW + back.hold_ms, back.by) then
    pacing.cool_down(task, NOW + back.hold_ms, back.by)
  end
end)

-- Start a cooldown of a model until an instant (ms). In the line '*', it applies to the requested name, whose tasks are set aside.
function pacing.cool_down(task, until_ms, by)
  if task.requested_model then
    local key = keys.name_cooldown(task.requested_model)
    until_ms = math.max(num(call('GET', key)), until_ms)
    call('SET', key, whole(until_ms), 'PX', whole(until_ms - NOW))
    models.use_extras(models.get(task.model))
    models.save(task.model)
    return
  end
  local model = models.get(task.model)
  if until_ms > (model.cooldown_until or 0) then
    model.cooldown_until, model.cooldown_by, model.paced = until_ms, by or '', true
    models.use_extras(model)
    models.save(task.model)
  end
end

hooks.attach('may_start', 'requested_model', function(task)
  local at = num(call('GET', keys.name_cooldown(task.requested_model)))
  return at > NOW and { aside = at } or nil
end)

-- The n-th task of a lane starts no earlier than the pace allows.
hooks.attach('expects', 'paced', function(model, name, task, n, interval)
  local at = pacing.opens(model, name, n)
  if model.tokens_per_minute then
    interval = math.max(interval, 60000 * ((task.input_tokens or 0) + (model.mean_output or 0)) / model.tokens_per_minute)
  end
  return interval, (at or NOW) - NOW - n * interval
end)

-- A model gets windows that had none: a running task counts from its first output, or until it ends.
hooks.attach('configured', 'windows', function(now, name, before)
  if before.windows then return end
  local key = keys.windows(name)
  for _, id in ipairs(call('ZRANGE', keys.slots(name), '0', '-1')) do
    local task = records.load(id)
    if task and task.epoch then
      task.report_sent, task.extras = true, true
      records.save(task)
      local at = task.first_output_at and math.min(task.first_output_at * 1000 + 1000, US) or FOREVER
      call('ZADD', key, whole(at), member(task))
    end
  end
  call('PEXPIRE', key, whole(windows_of(now).longest / 1000 + DAY))
end)

hooks.attach('unset', 'paced', function(before, name, now)
  if not windows_of(now) then call('DEL', keys.windows(name)) end
end)

-- mark_sent: note that the requests of running attempts have left now
-- args      sent: of each attempt {model, task id, epoch}
-- returns   {later}: models that can start a task later, and in how many ms (waking.lua)
script('mark_sent', 'allow-oom', function(ask)
  local later, woken = {}, {}
  for _, one in ipairs(ask.sent) do
    call('ZADD', keys.windows(one[1]), 'XX', US_TEXT, one[2] .. ':' .. whole(one[3]))
    woken[one[1]] = true
  end
  for name in pairs(woken) do waking.wake(name, later) end
  return { later = later }
end)

return pacing
