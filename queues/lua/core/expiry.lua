-- The sweep's work on tasks that are due.
local expiry = {}

-- `ends`: rest and code of the possible ends.
local function check_queued(task, ends)
  local asked = task.requested_model or task.model
  local waited, late, stranded = passed(task.wait_deadline), passed(task.deadline), passed(task.stranded_until)
  if stranded then
    task.stranded_until = nil
    records.save(task)
    stranded = not waking.is_offered(asked)
  end
  if late or waited or stranded then
    local why = late and ends.timeout or waited and ends.queue_timeout or ends.no_worker
    local at, closed = hooks.first('opens', models.get(task.model), task.model)
    if (late or waited) and closed == 'cooldown' then
      why = retrying.late_end({ rest = ends.busy.rest .. ',"retryAfterMs":' .. whole(at - NOW), code = ends.busy.code }, 'cooldown')
    elseif late or waited then
      local served = waking.is_offered(asked) or hooks.first('serves', models.get(task.model), task.model, task.queue)
      why = retrying.late_end(why, served and 'queue' or 'worker')
    end
    ending.finish_waiting(task, ending.failure(task, why))
  elseif passed(task.linger_at) then
    ending.finish_waiting(task, { state = 'cancelled', kind = 'cancelled', data = event_data(task.id, ends.left.rest), code = ends.left.code,
      unread = true })
  else
    call('ZADD', keys.due(), retrying.wait_instant(task), task.id)
  end
end

local function check_running(task, ends, grace)
  local expired, over = task.lease <= NOW, passed(task.attempt_deadline)
  if over then
    if expired then
      ending.release(task)
      ending.settle(task, {}, false)
    end
    ending.finish(task, ending.failure(task, retrying.late_end(ends.timeout, 'model')), { stop_until = not expired and NOW + grace or nil })
    ending.request_stop(task, 'timeout')
  elseif expired and hooks.first('expired', task, ends) then
    return
  elseif expired then
    retrying.put_back(task, { why = 'lease over', cause = 'failed', ends = ends }) -- the cause is unknown
  elseif passed(task.linger_at) then
    ending.finish(task, { state = 'cancelled', kind = 'cancelled', data = event_data(task.id, ends.left.rest), code = ends.left.code, unread = true },
      { stop_until = NOW + grace })
    ending.request_stop(task, 'client')
  else
    call('ZADD', keys.due(), granting.run_instant(task, task.lease), task.id)
  end
end

-- End or put back up to `most` tasks that are due. Return how many were checked, and the accounts of those that ended or returned.
function expiry.sweep(ask, most)
  local due, accounts, touched, freed = call('ZRANGEBYSCORE', keys.due(), '-inf', NOW_TEXT, 'LIMIT', '0', whole(most)), {}, {}, {}
  for _, id in ipairs(due) do
    local task = records.load(id)
    if not task or task.state == 'gone' then
      call('ZREM', keys.due(), id)
    else
      local before, name = task.state, task.model
      gaps.move(task, ask.lease_ms, ask.grace_ms)
      if before == 'queued' then
        check_queued(task, ask.ends)
      else
        touched[name], freed[task.queue .. ':' .. name] = true, task
        if before == 'executing' then
          check_running(task, ask.ends, ask.grace_ms)
        elseif (task.lease or 0) > NOW then
          call('ZADD', keys.due(), whole(task.lease), id)
        elseif ending.release(task) then
          ending.settle(task, task.used or {}, false)
          ending.close(task)
        end
      end
      if task.state ~= before then
        local account = ending.account(task)
        if task.state == 'queued' then account.model = name end -- the model that it was running on
        accounts[#accounts + 1] = account
      end
    end
  end
  for name in pairs(touched) do waking.wake(name) end
  for _, task in pairs(freed) do waking.wake_elsewhere(task) end
  return #due, accounts
end

-- Return up to `most` tasks that were set aside until now to their flows. Return whether there may be more.
function expiry.return_aside(most)
  local ids, touched = call('ZRANGEBYSCORE', keys.aside(), '-inf', NOW_TEXT, 'LIMIT', '0', whole(most)), {}
  for _, id in ipairs(ids) do
    local task = records.load(id)
    if task then
      lanes.dequeue(task)
      lanes.enqueue(task)
      touched[task.model] = true
    else
      call('ZREM', keys.aside(), id)
    end
  end
  for name in pairs(touched) do waking.wake(name) end
  return #ids == most
end

return expiry
