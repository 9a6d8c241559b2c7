-- Decides whether a task that has to wait is rejected.
local admission = {}

-- Return how many tasks of a user wait in a queue, over the first 100 models with waiting tasks and the task's own.
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

-- Return why a task that has to wait is rejected; nil: it can wait.
--   1  Fixed admission: the queue is full, and this user has at least as many waiting tasks as are missing until the queue has twice its length.
--      So one user alone can fill the queue and no more. If k users fill it, each has 1/(k+1) of twice its length, and the same number is
--      free for the next user.
--   2  Adaptive admission: the expected wait is longer than the queue's `max_wait_ms` or the task's timeout; or the lane has more tasks than
--      can leave within that time, and the user already waits. While the pace is unknown, 1 applies.
--   3  The task's timeout would end before the model can start all tasks of the user ahead of it, unless another model can run it; or, as far as
--      the pace is known, before even the shortest expected wait.
-- Each rejection has `retry_ms`, the estimated time until the task would be accepted. `ask`: the arguments of submit.
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
  local most, waiting = settings.max_length or ask.max_length, models.waiting(queue)
  local more = waiting > 0 and (task.parts or 1) - 1 or 0 -- if no task waits, a chain has room for any number of parts
  waiting = waiting + more
  if waiting >= most then -- 1
    local own = own_in_queue(task) + more
    local over = own - (2 * most - waiting)
    -- later stages of chains are never rejected and could fill the whole queue: each user keeps an even share
    local share = waiting >= 2 * most and math.floor(most / (lane.users + 1)) or 0
    if over >= 0 and own >= share then return { rejected = 'full', waiting = waiting, limit = most, retry_ms = in_ms(interval() * (over + 1)) } end
  end
  if timeout_ms > 0 and model.extras and not hooks.first('falls', task) then -- 3
    local least = until_open(call('ZCOUNT', keys.flow(queue, name, task.user), '-inf', whole(task.order)) + 1)
    if least > timeout_ms then return { rejected = 'too_long', waiting = least, limit = timeout_ms, retry_ms = in_ms(least - timeout_ms) } end
  end
  local gone, took_ms = lanes.departures(lane)
  if timeout_ms > 0 and gone >= 1 and lane.waiting * took_ms > timeout_ms * gone then -- skips the estimate for most tasks
    local n, each, delay = ahead() + 1, interval(), until_open()
    local least = delay + (0.6 * n - 1.3 * math.sqrt(n)) * each
    if least > timeout_ms then
      return { rejected = 'too_long', waiting = math.floor(delay + n * each), limit = timeout_ms, retry_ms = in_ms(least - timeout_ms) }
    end
  end
end

return admission
