-- cancel: end a task from outside (its caller, an operator, a time limit), whatever it does
-- args      id; state, kind, code, and rest: the terminal event's fields, without braces; why, which the owner gets: client | timeout | admin;
--           grace_ms: how long a running task's slot may stay `stopping` until its worker confirms; tombstone_ms: an unknown task is
--           rejected for so long if its submit comes late
-- returns   {outcome = 'ended', state, event_id, data, account, ended: accounts of tasks that ended with it} | {outcome = 'over', state} it had
--           ended before | {outcome = 'unknown'}
-- A tombstone is wanted of a submit of unknown outcome. A task that an idempotency key names is left alone then: its caller comes again
-- with the key, else the task ends like others without readers. All readers' replicas get the event, the caller's too: if this
-- reply is lost, a repetition finds the task over.
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
