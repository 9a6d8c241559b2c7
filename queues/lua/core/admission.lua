-- Whether a task that has to wait is rejected.
local admission = {}

-- Return how many tasks of a user wait in a queue, over all models with waiting tasks (of very many, those first in their line).
local function own_in_queue(task)
  local own, counted = 0, {}
  local names = call('ZRANGE', keys.backlog(), '0', '99')
  names[#names + 1] = task.model
  for _, name in ipairs(names) do
    if not counted[name] then
      local user = lanes.user(task.queue, name, task.user)
      own = own + user.waiting + user.aside
    end
    counted[name] = true
  end
  return own
end

-- Return why a task that has to wait is rejected; nil: it may wait.
--   1  a queue of fixed admission holds as many tasks as it may, and this user has at least as many there as it would take from now on
--      until it holds twice as many. So one user alone fills the queue and no more; of k who fill it each has the (k+1)th part of twice
--      its length, and as much is free for the next one.
--   2  a queue of adaptive admission: the wait to expect is longer than the queue's longest or the caller's own time; or the lane holds
--      more than would leave within that time, and the user is in line already. Where no pace is known yet, as in 1.
--   3  its caller's own time would be over: before the model may start as many tasks as the user has in line, unless another model may run
--      it; or however short the wait may turn out to be, as far as the pace is known
-- Each says how long it will take, as far as can be estimated, until it would be accepted. `ask`: the arguments of submit.
function admission.refuse(task, ask)
  local name, queue, model = task.model, task.queue, models.get(task.model)
  local lane, settings = models.lane(model, queue), models.queue(queue)
  local wait_ms, timeout_ms = task.wait_ms or 0, task.timeout_ms or 0
  local function in_ms(wait) return math.max(math.ceil(wait), 1) end
  local function interval() return (placing.interval(name, queue)) end
  local function ahead()
    local own = call('ZCOUNT', keys.flow(queue, name, task.user), '-inf', whole(task.order))
    local k = call('ZRANK', keys.flows(queue, name), task.user) or lane.users
    return math.min(own * math.max(lane.users, 1) + k, lane.waiting), own
  end
  local function until_open(n) return math.max((hooks.first('opens', model, name, n) or 0) - NOW, 0) end
  if settings.admission == 'adaptive' then -- 2
    local pace = (lanes.departures(lane)) >= 1 and interval() or nil
    local longest = wait_ms > 0 and (timeout_ms > 0 and math.min(wait_ms, timeout_ms) or wait_ms) or timeout_ms
    if pace and longest > 0 then
      local before, own = ahead()
      local wait = math.max((before + 1) * pace + until_open(), until_open(before + 1))
      if wait > longest then return { rejected = 'too_long', waiting = math.floor(wait), limit = longest, retry_ms = in_ms(wait - longest) } end
      local fits = math.max(math.floor(longest / pace), 1)
      if own > 0 and lane.waiting >= fits then
        return { rejected = 'full', waiting = lane.waiting, limit = fits, retry_ms = in_ms((lane.waiting - fits + 1) * pace) }
      end
      return nil
    end
  end
  local most, waiting = settings.max_length or ask.max_length, num(call('HGET', keys.queue(queue), 'waiting'))
  local more = waiting > 0 and (task.parts or 1) - 1 or 0 -- if no task waits a chain has room, however many its parts
  waiting = waiting + more
  if waiting >= most then -- 1
    local own = own_in_queue(task) + more
    local over = own - (2 * most - waiting)
    -- stages of chains that others have begun, which nothing rejects, may take it all: an even part is left to each
    local share = waiting >= 2 * most and math.floor(most / (lane.users + 1)) or 0
    if over >= 0 and own >= share then return { rejected = 'full', waiting = waiting, limit = most, retry_ms = in_ms(interval() * (over + 1)) } end
  end
  if timeout_ms > 0 and not hooks.first('falls', task) then -- 3
    local least = until_open(call('ZCOUNT', keys.flow(queue, name, task.user), '-inf', whole(task.order)) + 1)
    if least > timeout_ms then return { rejected = 'too_long', waiting = least, limit = timeout_ms, retry_ms = in_ms(least - timeout_ms) } end
  end
  local gone, took_ms = lanes.departures(lane)
  if timeout_ms > 0 and gone >= 1 and lane.waiting * took_ms > timeout_ms * gone then -- most are not looked at further
    local n, each, delay = ahead() + 1, interval(), until_open()
    local least = delay + (0.6 * n - 1.3 * math.sqrt(n)) * each
    if least > timeout_ms then
      return { rejected = 'too_long', waiting = math.floor(delay + n * each), limit = timeout_ms, retry_ms = in_ms(least - timeout_ms) }
    end
  end
end

return admission
