-- requeue: return a granted task to its old place, because its worker is gone, failed or declines it
-- args      id, epoch and token of the grant; arguments of retrying.put_back: why, cause, begun, ends, suspicion, grace, used; hold_ms: the pause
--           that the provider asked for; by: the worker that reported it; unsent: no request was sent; aside_ms: the task is set aside for
--           this long
-- strings   for the cause 'redo', the new payload
-- returns   {outcome = 'queued', later, model: the name that it requests now} | {outcome = 'ended', event_id, kind, data, account, ended: accounts
--           of tasks that ended with it} | {outcome = 'stale', state}. A repeated call returns 'ended' without the accounts, or 'stale'.
script('requeue', 'allow-oom', function(ask, args)
  local task = records.load(ask.id)
  if not task or task.epoch ~= ask.epoch or task.token ~= ask.token then
    return { outcome = 'stale', state = task and task.state or 'unknown' }
  end
  local freed = task.model
  if task.state ~= 'executing' then
    if ending.release(task) then
      ending.settle(task, ask.used or {}, false)
      ending.close(task)
      waking.wake(freed)
      waking.wake_elsewhere(task)
    end
    local entry = task.end_nonce == ask.token and call('XRANGE', keys.log(ask.id), task.end_id, task.end_id)[1]
    if not entry then return { outcome = 'stale', state = task.state } end
    return { outcome = 'ended', event_id = task.end_id, kind = entry[2][2], data = entry[2][4] }
  end
  ask.payload, ask.nonce = args[2], ask.token
  if ask.aside_ms then ask.aside_until = NOW + ask.aside_ms end
  if task.last_lost and not ask.unsent and ask.cause ~= 'lost' then task.last_lost = nil end -- its worker is still there
  hooks.each('failed', task, ask)
  if ask.hold_ms and not ask.held then ask.cause = 'failed' end -- no feature waits for the provider, so the attempt counts
  hooks.each('attempted', task, ask.cause ~= 'redo' and ask.why or nil)
  local reply = retrying.put_back(task, ask)
  reply.later = waking.wake(task.model, {})
  if task.model ~= freed then waking.wake(freed) end
  waking.wake_elsewhere(task)
  reply.ended = ending.related()
  return reply
end)
