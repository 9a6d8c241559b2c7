-- Permits: the right of a client to call an endpoint itself, once, within a time. A task with a `permit` (`unused_ms`: how long it can be
-- used; `used_ms`: how long a used one keeps its slot; `event`: the fields of its event) waits in its endpoint's line like any other task, but
-- needs no worker: the script that finds that its turn has come issues the permit. From then on it depends on no replica. If it is not
-- used in time, the task fails and its slot is free. If it is used (`permit` is then {used_at, nonce}), it keeps its slot until its end is
-- reported or its lease is over.
--
-- Its request goes through the proxy to the endpoint, and Fairlane does not see it arrive. It is assumed to have arrived TRANSIT us after
-- its use, or when its end is reported.
local permits = {}
local TRANSIT = 30000

hooks.attach('queued', 'permit', function(task, by)
  local model = models.get(task.model)
  model.permits, model.extras = (model.permits or 0) + by, true
  if model.permits == 0 then model.permits = nil end
end)

hooks.attach('serves', 'permits', function() return true end)

hooks.attach('starts', 'permits', function(_, name) return granting.start_alone(name) end)

-- A task with an issued permit does not end when its readers leave, because the client can use it without reading.
local function issue(task)
  task.attempt_deadline, task.linger_at, task.linger_ms = nil, nil, false
  log.add(task, task.epoch, 'permit', event_data(task.id, task.permit.event .. ',"expiresAt":' .. whole(task.lease)))
end

hooks.attach('may_start', 'permit', function(task)
  local until_ms = earlier(NOW + task.permit.unused_ms, task.deadline)
  return { alone = { worker = 'permits', token = '', ms = until_ms - NOW, begun = issue } }
end)

-- Release the slot of a permit. Return whether it held one. It is charged as one call, plus the number of calls that others could have made
-- while it was issued and not used, so that wasting permits costs the same as using them. An unused permit counts in no window.
local function give_back(task, completed)
  if not ending.release(task) then return false end
  local used_at = task.permit.used_at
  if pacing and not used_at and task.report_sent then pacing.forget(task) end
  ending.settle(task, {}, completed, (used_at or NOW) - task.granted_at)
  return true
end

local function wake(task)
  waking.wake(task.model)
  waking.wake_elsewhere(task)
end

-- A task is ended from outside. A call that uses its permit continues, so its slot is taken until the call's end.
hooks.attach('ended', 'permit', function(task, _, more)
  if not more.stop_until then return end
  if task.permit.used_at then
    more.stop_until = math.max(task.lease, NOW + 1)
  else
    more.stop_until = nil
    give_back(task, false)
    wake(task)
  end
end)

local function complete(task, rest)
  give_back(task, true)
  ending.finish(task, { state = 'completed', kind = 'done', data = event_data(task.id, rest) })
end

hooks.attach('expired', 'permit', function(task, ends)
  if task.permit.used_at then
    complete(task, ends.permit_unreported.rest)
  else
    give_back(task, false)
    ending.finish(task, ending.failure(task, ends.permit_unused))
  end
  return true
end)

-- use_permit: use a permit, once; from then on it holds its slot until its end is reported, or its time is over
-- args      id; nonce of this call
-- returns   {outcome, epoch of its grant, queue, model, waited_ms, later}; outcome: 'in': used now, or before by the same call | 'used' before |
--           'over': it was not used in time, or its task was cancelled | 'unknown' task
script('use_permit', 'allow-oom', function(ask)
  local task = records.load(ask.id)
  if not task or task.state == 'gone' then return { outcome = 'unknown' } end
  local permit, running = task.permit, task.state == 'executing'
  if not permit then return { outcome = 'over' } end
  local reply = { outcome = 'in', epoch = task.epoch, queue = task.queue, model = task.model, later = {} }
  if permit.used_at then
    if permit.nonce ~= ask.nonce or not running then reply.outcome = 'used' end
    return reply
  end
  if not running or passed(task.lease) then return { outcome = 'over' } end
  reply.waited_ms = task.granted_at - task.enqueued_at
  task.permit = { used_at = NOW, nonce = ask.nonce }
  task.first_output_at = NOW
  payloads.drop(task)
  ending.keep_slot(task, NOW + permit.used_ms)
  records.save(task)
  if pacing and task.report_sent then -- its window lasts from when its request has arrived at the endpoint
    pacing.note_sent(task, US + TRANSIT)
    waking.wake(task.model, reply.later)
  end
  return reply
end)

-- release_permit: the call of a permit has ended: complete its task and release its slot
-- args      id; epoch of the permit's grant; rest: fields of the terminal event, without braces
-- returns   {outcome, account}; outcome: 'ended' | 'over': it had ended before, or its time was over | 'unused': the permit was not used |
--           'unknown' task
-- The event is published to all replicas with readers, including the calling one: if this reply is lost, a repeated call finds the task over.
script('release_permit', 'allow-oom', function(ask)
  local task = records.load(ask.id)
  if not task or task.state == 'gone' then return { outcome = 'unknown' } end
  if not task.permit or task.epoch ~= ask.epoch then return { outcome = 'over' } end
  local running = task.state == 'executing'
  if not task.permit.used_at then return { outcome = running and 'unused' or 'over' } end
  local reply = { outcome = 'over' }
  if running then
    complete(task, ask.rest)
    reply = { outcome = 'ended', account = ending.account(task) }
  elseif give_back(task, false) then -- it was cancelled while the call was under way
    ending.close(task)
  else
    return reply
  end
  wake(task)
  return reply
end)

return permits
