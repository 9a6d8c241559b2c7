-- renew: extend the leases of running tasks, and the linger time of tasks with readers
-- args      lease_ms; grace_ms: how far a lease can exceed a deadline; held: for each task {id, epoch, token, worker, 1 if it has begun, tokens of
--           output so far or nil}; read: ids of tasks that have readers here
-- returns   {replies}: for each held task 1: renewed | 0: the grant is over, stop it | 2: ended from outside, stop it and report when it stopped

-- Charge a running task for its use until now, so that users pay before their tasks end.
local function charge_running(task, output)
  local user, model, due = lanes.user_of(task), models.get(task.model), nil
  if model.cost == 'slot_seconds' then
    due = NOW - task.granted_at
  elseif model.cost ~= 'requests' and output then
    due = granting.token_cost(task.input_tokens, granting.output_due(task, output, model, user))
  end
  if due and due > task.account.cost then lanes.charge(task, due - task.account.cost) end
end

local function renew(ask, id, epoch, token, worker, begun, output)
  local task = records.load(id)
  if not task or task.epoch ~= epoch or task.token ~= token then return 0 end
  if task.state ~= 'executing' then return 2 end
  local lease = NOW + ask.lease_ms
  if task.attempt_deadline > 0 then lease = math.min(lease, task.attempt_deadline + ask.grace_ms) end
  ending.keep_slot(task, lease)
  if not task.begun then
    task.worker = worker
    if begun then task.begun, task.tries = true, (task.tries or 0) + 1 end
  end
  charge_running(task, output)
  if output then task.used = { input = task.input_tokens or 0, output = output, estimated = true } end -- in case its worker never reports its usage
  records.save(task)
  return 1
end

script('renew', 'allow-oom', function(ask)
  local replies = {}
  for i, one in ipairs(ask.held) do replies[i] = renew(ask, unpack(one, 1, 6)) end
  for _, id in ipairs(ask.read) do
    local task = records.load(id)
    if task and task.linger_ms and (task.state == 'queued' or task.state == 'executing') then retrying.linger(task) end
  end
  return { replies = replies }
end)
