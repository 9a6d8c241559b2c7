-- Ends: release a slot, settle an attempt, end a task.
local ending = {}
local MAX_IDLE = 1000 -- requests that an idle slot is charged

-- Return the next value of a running mean.
local function mean_after(mean, value, share)
  if not mean or mean == 0 then return math.max(value, 1) end
  return mean + share * (value - mean)
end

-- Close a task that has ended and holds no slot: add its usage record, and keep its record and log for their time. (hook `closed`)
function ending.close(task)
  task.keep_ms = math.max(task.ended_at + (task.ttl or 0) - NOW, 1000)
  hooks.each('closed', task)
  retention.keep(task, task.keep_ms)
  task.keep_ms, task.lease, task.deadline, task.attempt_deadline, task.account, task.order = nil, nil, nil, nil, nil, nil
  records.save(task)
  outbox.record(task)
end

-- Release a task's slot. Return whether it held one, which is true once per attempt. Then the caller must close the attempt's account with
-- `settle` or `refund`.
function ending.release(task)
  local held = slots.free(task.model, task.id)
  call('ZREM', keys.due(), task.id)
  if not held then return false end
  local user = lanes.user_of(task)
  local lane = models.lane(models.get(task.model), task.queue)
  lane.running, user.running = lane.running - 1, user.running - 1
  if task.counted then call('SREM', keys.load(task.queue), task.id) end
  task.counted = nil
  models.save(task.model)
  lanes.save_user(user)
  hooks.each('released', task)
  return true
end

-- Settle an attempt whose slot was released: charge the difference between usage and estimate, and update the means. `used`: tokens of
-- `input` and `output` (absent: unknown), capped at 4,194,304 for the charge and at 131,072 for the means. `completed`: it ran to its end.
-- `idle_ms`: the time in the slot before the work began. It is not part of the duration, and is charged as the number of requests that others
-- could have made in it.
function ending.settle(task, used, completed, idle_ms)
  local user, model = lanes.user_of(task), models.get(task.model)
  local input, output = used.input, used.output
  local known = input ~= nil and output ~= nil
  local held_ms = math.max(NOW - task.granted_at, 0)
  idle_ms = math.min(idle_ms or 0, held_ms)
  local ran_ms, due = held_ms - idle_ms, nil
  if model.cost == 'slot_seconds' then
    due = held_ms
  elseif model.cost == 'requests' then
    due = 1
    if idle_ms > 0 and (model.mean_ms or 0) > 0 then due = 1 + math.min(math.floor(idle_ms / model.mean_ms), MAX_IDLE) end
  elseif known then
    due = math.min(input, 4194304) + 2 * math.min(output, 4194304)
  end
  if due and due ~= task.account.cost then lanes.charge(task, due - task.account.cost) end
  if completed then
    if known then
      output = math.min(output, 131072)
      local longest = model.longest_output or 0 -- recent: it fades with shorter ones
      model.longest_output = output > longest and output or longest - math.floor((longest - output) / 64)
      user.output = mean_after(user.output, output, 0.3)
      model.mean_output = mean_after(model.mean_output, output, 0.05)
      model.mean_speed = mean_after(model.mean_speed, math.min(output * 1000 / math.max(ran_ms, 1), 1000), 0.1)
    end
    if model.cost == 'slot_seconds' then user.ms = mean_after(user.ms, ran_ms, 0.3) end
    model.mean_ms = mean_after(model.mean_ms, ran_ms, 0.1)
  end
  models.save(task.model)
  lanes.stopped(task)
  hooks.each('settled', task, used, completed)
end

-- Refund the whole charge of an attempt.
function ending.refund(task)
  if task.account.cost > 0 then lanes.charge(task, 0 - task.account.cost) end
  lanes.stopped(task)
  hooks.each('settled', task, nil, false)
end

-- Log the last events of an attempt, from number `seq` on, that its log does not have yet; their data are in `args` after index `at` (1).
-- Return the attempt's epoch if the next event gets the number that its writer expects, because then no reader saw another event with that id.
function ending.log_last(task, seq, kinds, args, replica, at)
  for i, kind in ipairs(kinds) do
    if seq > log.top(task) then
      log.add(task, task.epoch, kind, args[(at or 1) + i], replica)
      if not task.first_output_at and kind == 'chunk' then task.first_output_at = NOW end
    end
    seq = seq + 1
  end
  return seq == log.top(task) + 1 and task.epoch or nil
end

-- Return the failure of a task, for `finish`. `why`: `rest` and `code`.
function ending.failure(task, why)
  return { state = 'failed', kind = 'error', code = why.code, data = event_data(task.id, why.rest .. (task.failure_fields or '')) }
end

-- End a task. This is the only writer of terminal events and final states. `finish`: the `state`, the `kind` and `data` of the terminal event,
-- the failure `code`, and the `nonce` of a call that can be repeated. `more.stop_until`: the slot stays `stopping` until then; without it, the
-- caller has already removed the task from its lane or released its slot. The terminal event gets a new epoch, because the store may have
-- lost events of the attempt that readers have seen; only if the attempt's writer ends it, `more.epoch` is the attempt's epoch.
-- Return the id of the terminal event.
function ending.finish(task, finish, more)
  more = more or {}
  payloads.drop(task)
  task.state, task.ended_at, task.code, task.end_nonce = finish.state, NOW, finish.code or '', finish.nonce
  task.used = more.used or task.used
  task.end_id = log.add(task, more.epoch or granting.new_epoch(task), finish.kind, finish.data, more.except)
  records.save(task)
  if not task.chain then
    local model = models.get(task.model)
    model[finish.state] = (model[finish.state] or 0) + 1
    models.save(task.model)
  end
  hooks.each('ended', task, finish, more)
  if more.stop_until then
    ending.keep_slot(task, more.stop_until)
  elseif not task.parts_run then
    ending.close(task)
  end
  return task.end_id
end

-- Keep the slot of a task until an instant (ms).
function ending.keep_slot(task, until_ms)
  task.lease = until_ms
  slots.take(task.model, task.id, until_ms)
  call('ZADD', keys.due(), task.state == 'executing' and granting.run_instant(task, until_ms) or whole(until_ms), task.id)
end

-- End a task that waits.
function ending.finish_waiting(task, finish)
  call('ZREM', keys.due(), task.id)
  lanes.dequeue(task)
  return ending.finish(task, finish)
end

-- Return the account of a task's end or return, for metrics and the log.
function ending.account(task)
  return {
    id = task.id, queue = task.queue, model = task.model, type = task.type, state = task.state, code = task.code or '',
    total_ms = NOW - task.enqueued_at, ran_ms = task.granted_at and NOW - task.granted_at or -1, request_id = task.request_id or '',
    user = task.user, asked = task.requested_model or task.model, worker = task.worker or '', attempt = task.attempt or 0,
  }
end

-- Ask the replica that owns a running task to stop its worker.
function ending.request_stop(task, why)
  if task.owner then publish(task.owner, 'stop\n' .. task.id .. '\n' .. whole(task.epoch) .. '\n' .. why) end
end

-- Accounts of the tasks that ended together with another one in this call.
local related = {}

function ending.next_call() related = {} end

ending.begin = ending.next_call

function ending.add_related(task) related[#related + 1] = ending.account(task) end

-- Return the accounts of these tasks, once.
function ending.related()
  local accounts = related
  related = {}
  return accounts
end

unit_of_work[#unit_of_work + 1] = ending
return ending
