-- Returns a granted task to its old place, or ends it.
local retrying = {}

-- Add an attempt to the history of a task: the last 20, about 2,000 bytes.
local function note_attempt(task, why)
  local history = task.history or {}
  history[#history + 1] = { worker = task.worker or '', granted_at = task.granted_at, ended_at = NOW, why = why }
  if #history > 20 then table.remove(history, 1) end
  task.history = history
end

-- Return the end of a task whose time is over, with what it waited for: 'queue' | 'worker' | 'cooldown' | 'model' (a worker had it).
function retrying.late_end(why, waited_for)
  return { rest = why.rest .. ',"waitedFor":"' .. waited_for .. '"', code = why.code }
end

-- Return whether a task has no tries left. `cause`: see `put_back`.
local function used_up(task, cause, held)
  if cause == 'redo' and (task.redone or not task.repair) then return true end
  if task.first_output_at or task.attempt - (task.attempts_before or 0) >= (held and 1000 or 100) then return true end
  local max_tries = task.max_tries or 3
  if cause == 'redo' or cause == 'declined' or not (task.begun or max_tries == 1) then return false end
  return max_tries == 1 or (task.tries or 0) >= max_tries -- with a single try, its worker may have begun unseen
end

-- Close the account of a running attempt and put its task back to its old place, or end it. `back`:
--   why      for the history: the code of a failure
--   cause    'lost' (the worker is gone), 'failed' (a retry may help), 'falls' (only another model may help), 'declined', or 'redo' (the
--            answer is requested again, once, with `payload`; it `used` these tokens). The last two cost no try
--   begun    the worker had begun, although no renewal reported it
--   ends     `rest` and `code` of the possible ends: lost, no_worker, timeout
--   nonce    of a call that can be repeated
--   suspicion  why the task may be the reason that its worker was lost
--   held     its provider asked for a pause; `aside_until`: the task is set aside until then
--   grace    ms for which a task with a waiting client waits if no worker is left
-- In any case a task ends after 100 attempts, or after 1,000 if its provider asks for pauses, because each attempt is an event of its log.
-- Return the outcome: 'queued' or 'ended', and of the end the event's id, kind and data.
function retrying.put_back(task, back)
  local cause, ends, redo = back.cause, back.ends, back.cause == 'redo'
  ending.release(task)
  note_attempt(task, back.why)
  if back.begun and not task.begun then task.begun, task.tries = true, (task.tries or 0) + 1 end
  if (cause == 'declined' or redo) and task.begun then task.tries = math.max((task.tries or 0) - 1, 0) end -- undo the try that a renewal counted
  if task.begun and cause ~= 'declined' and not redo and back.suspicion then task.last_lost = back.suspicion end

  local give_up = used_up(task, cause, back.held) and ends.lost or nil
  local move = not give_up and hooks.first('route', task, back) or nil
  if not give_up and not move then
    local at, why = eligible.opens_at(task.model, models.get(task.model))
    if cause == 'falls' or (task.waiting and cause == 'failed' and task.begun and why == 'open') then
      give_up = ends.lost
    elseif back.held and task.deadline and (back.aside_until or at or 0) >= task.deadline then -- its deadline is before the end of the pause
      give_up = ends.lost
    elseif task.waiting and not waking.is_offered(task.requested_model or task.model) then
      if redo or (back.grace or 0) == 0 then
        give_up = redo and ends.lost or ends.no_worker
      else
        task.stranded_until = NOW + back.grace
      end
    end
  end
  if not give_up and passed(task.deadline) then give_up = retrying.late_end(ends.timeout, 'model') end

  if redo then
    ending.settle(task, back.used, false)
  elseif give_up and task.first_output_at then
    ending.settle(task, {}, false)
  else
    ending.refund(task)
  end
  if give_up then
    local finish = ending.failure(task, give_up)
    finish.nonce = back.nonce
    return { outcome = 'ended', event_id = ending.finish(task, finish, { used = back.used }), kind = 'error', data = finish.data,
      account = ending.account(task) }
  end

  if redo then
    task.redone, task.used_before, task.used, task.event_fields = true, back.used, nil, (task.event_fields or '') .. ',"repair":true'
    payloads.replace(task, back.payload)
    hooks.each('redone', task, back.used)
  end
  if task.wait_deadline then task.wait_deadline = task.wait_deadline + NOW - task.granted_at end -- running was not waiting
  task.state, task.token, task.owner, task.attempt_deadline, task.account = 'queued', '', nil, nil, nil
  task.worker, task.begun, task.granted_at, task.upstream = nil, nil, nil, nil
  if move then
    move()
    models.touch(task.model, models.get(task.model))
  end
  if back.aside_until and not move then lanes.set_aside(task, back.aside_until) else lanes.enqueue(task) end
  call('ZADD', keys.due(), retrying.wait_instant(task), task.id)
  records.save(task)
  return { outcome = 'queued', model = task.requested_model or task.model }
end

-- Return the instant at which the sweep must check a waiting task.
function retrying.wait_instant(task)
  return whole(earlier(earlier(earlier(earlier(FOREVER, task.wait_deadline), task.deadline), task.linger_at), task.stranded_until))
end

-- Extend the time for which a task continues without readers.
function retrying.linger(task)
  task.linger_at = NOW + task.linger_ms
  local waits = task.state == 'queued'
  call('ZADD', keys.due(), waits and retrying.wait_instant(task) or granting.run_instant(task, task.lease), task.id)
  records.save(task)
end

return retrying
