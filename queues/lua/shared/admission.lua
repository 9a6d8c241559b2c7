-- How many tasks of a user wait in a queue, over all models; looked for where `m` and the models first in line have them.
local function own_in_queue(q, m, u)
  local own = call('ZCARD', keys.flow(q, m, u)) + num(call('HGET', keys.aside_of(q), u))
  for _, model in ipairs(call('ZRANGE', keys.backlog(), '0', '99')) do
    if model ~= m then own = own + call('ZCARD', keys.flow(q, model, u)) end
  end
  return own
end

-- Count a body among those that are stored, unless there is no room for it. A user's large bodies may take no more than they leave
-- free, so that one alone has half, and the next ones find room; one body of each user always fits. `large`: of several bodies, what
-- the large ones take.
local function stores(u, bytes, limit, large)
  large = large or (bytes >= LARGE_BODY and bytes or 0)
  local total = call('HINCRBY', keys.pool(), 'bytes', whole(bytes))
  local own = large > 0 and num(call('HGET', keys.bulk(), u)) or 0
  if total > limit or (own > 0 and own + bytes > limit - total) then
    call('HINCRBY', keys.pool(), 'bytes', 0 - bytes)
    return false
  end
  if large > 0 then call('HINCRBY', keys.bulk(), u, whole(large)) end
  return true
end

-- Whether a task that has to wait is refused, as submit replies it; nil: it may wait.
--   1  its user has as many waiting tasks of the model as one may
--   2  a queue of fixed admission holds as many tasks as it may, and this user has at least as many there as it would take from
--      now on until it holds twice as many. So one user alone fills the queue and no more; of k who fill it each has the (k+1)th
--      part of twice its length, and as much is free for the next one.
--   3  a queue of adaptive admission: the wait to expect is longer than the queue's longest or the caller's own time; or the lane
--      holds more than would leave within that time, and the user is in line already. Where no pace is known
--      yet, as in 2.
--   4  its caller's own time would be over, however short the wait may turn out to be, as far as the pace is known, or by the model's
--      windows, which are known
-- Each says how long it will take, as far as can be estimated, until it would be accepted. `lane`: as `read_lane` gives it; `length`: of
-- the queue: how many are `waiting`, with how many `more` that would come with this one, the `most` that it holds, and whether admission is `adaptive`.
local function refuse(q, m, u, order, length, lane, wait_ms, timeout_ms, ruled)
  local function in_ms(wait) return math.max(math.ceil(wait), 1) end
  local function interval() return interval_of(q, m, lane.drain, lane.mean_ms) end
  local function ahead()
    local own, users = call('ZCOUNT', keys.flow(q, m, u), '-inf', order), call('ZCARD', keys.flows(q, m))
    local k = call('ZRANK', keys.flows(q, m), u) or users
    return math.min(own * math.max(users, 1) + k, lane.waiting), own
  end
  local text = ruled and call('HGET', keys.model(m), 'windows')
  local function in_windows(n) return text and math.max(windows.free_at(m, text, n) - US, 0) / 1000 or 0 end
  if ruled then -- 1
    local cap = num(call('HGET', keys.model(m), 'max_waiting_per_user'))
    local waiting = cap > 0 and count_of_user(m, u, true) or 0
    if cap > 0 and waiting >= cap then
      return { 'user_full', waiting, cap, in_ms(interval() * math.max(call('ZCARD', keys.flows(q, m)), 1) * (waiting - cap + 1)) }
    end
  end
  if length.adaptive then -- 3
    local pace = read_drain(lane.drain) >= 1 and interval_of(q, m, lane.drain, lane.mean_ms) or nil
    local longest = wait_ms > 0 and (timeout_ms > 0 and math.min(wait_ms, timeout_ms) or wait_ms) or timeout_ms
    if pace and longest > 0 then
      local before, own = ahead()
      local wait = math.max((before + 1) * pace + math.max(lane.held - NOW, 0), in_windows(before + 1))
      if wait > longest then return { 'too_long', math.floor(wait), longest, in_ms(wait - longest) } end
      local fits = math.max(math.floor(longest / pace), 1)
      if own > 0 and lane.waiting >= fits then
        return { 'full', lane.waiting, fits, in_ms((lane.waiting - fits + 1) * pace) }
      end
      return nil
    end
  end
  if length.waiting >= length.most then -- 2
    local own = own_in_queue(q, m, u) + length.more
    local over = own - (2 * length.most - length.waiting)
    -- stages of chains that others have begun, which nothing refuses, may take it all: an even part is left to each
    local share = length.waiting >= 2 * length.most and math.floor(length.most / (call('ZCARD', keys.flows(q, m)) + 1)) or 0
    if over >= 0 and own >= share then return { 'full', length.waiting, length.most, in_ms(interval() * (over + 1)) } end
  end
  local least_ms = text and timeout_ms > 0 and in_windows(call('ZCOUNT', keys.flow(q, m, u), '-inf', order) + 1) or 0
  if least_ms > timeout_ms then return { 'too_long', in_ms(least_ms), timeout_ms, in_ms(least_ms - timeout_ms) } end
  local departed, took_ms = read_drain(lane.drain)
  if timeout_ms > 0 and departed >= 1 and lane.waiting * took_ms > timeout_ms * departed then -- 4: most are not looked at further
    local n, each, delay = ahead() + 1, interval(), math.max(lane.held - NOW, 0)
    local least = delay + (0.6 * n - 1.3 * math.sqrt(n)) * each
    if least > timeout_ms then return { 'too_long', math.floor(delay + n * each), timeout_ms, in_ms(least - timeout_ms) } end
  end
end
