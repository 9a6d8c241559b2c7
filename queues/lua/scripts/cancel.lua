-- cancel: end a task from outside (its client, an operator, a time limit), whether it waits or runs
-- args      id; state, kind, code, and rest: the terminal event's fields, without braces; why, for the owner: client | timeout | admin;
--           grace_ms: how long a running task's slot may stay `stopping` until its worker confirms; tombstone_ms: how long the submit of a
--           task that is unknown now is rejected if it arrives late
-- returns   {outcome = 'ended', state, event_id, data, account, ended: accounts of tasks that ended with it} | {outcome = 'over', state}: it had
--           ended before | {outcome = 'unknown'}
-- A gateway asks for a tombstone if the outcome of a submit is unknown. Then a task with an idempotency key is not cancelled: its client
-- repeats the request with the key, or else the task ends like others without readers. The event is published to all replicas with readers,
-- including the calling one: if this reply is lost, a repeated call finds the task over.
script('cancel', 'allow-oom', function(ask)
  local task = records.load(ask.id)
  if not task or task.state == 'gone' then
    if ask.tombstone_ms then
      call('HSET', keys.task(ask.id), 'run', cmsgpack.pack({ state = 'gone' }))
      call('PEXPIRE', keys.task(ask.id), whole(ask.tombstone_ms))
    end
    return { outcome = 'unknown' }
  end
  local live = task.state == 'queued' or task.state == 'executing'
  if not live or (ask.tombstone_ms and task.idempotency) then return { outcome = 'over', state = task.state } end
  local finish = { state = ask.state, kind = ask.kind, code = ask.code, data = event_data(ask.id, ask.rest) }
  if ask.state == 'failed' then finish = ending.failure(task, ask) end
  local event_id
  if task.state == 'queued' then
    event_id = ending.finish_waiting(task, finish)
  else
    event_id = ending.finish(task, finish, { stop_until = NOW + ask.grace_ms })
    ending.request_stop(task, ask.why)
  end
  return { outcome = 'ended', state = task.state, event_id = event_id, data = finish.data, account = ending.account(task), ended = ending.related() }
end)
