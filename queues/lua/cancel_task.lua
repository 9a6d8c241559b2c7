-- cancel_task: end a task from outside (its caller, an operator, a time limit), whatever it does
-- KEYS[1]  prefix of the pool
-- ARGV[1]  task id
-- ARGV[2]  state it ends in: cancelled | failed
-- ARGV[3]  type of the terminal event: cancelled | error
-- ARGV[4]  its fields, without braces
-- ARGV[5]  failure code, or ''
-- ARGV[6]  the reason, which the owner gets: client | timeout | admin
-- ARGV[7]  grace, ms: how long a running task's slot may stay `stopping` until its worker confirms
-- ARGV[8]  tombstone, ms: an unknown task is refused for so long if its submit comes late (0: none)
-- returns  {'ended', state, event id, data, account of the end (endings.lua), accounts of tasks that ended with it} now | {'over', state} it had ended before | {'unknown'}
-- A tombstone is wanted of a submit of unknown outcome. A task that an idempotency key names is left alone then: its caller comes
-- again with the key, else the task ends like others without readers; readers that joined it meanwhile continue.
-- All readers' replicas get the event, the caller's too: if this reply is lost, a repetition finds the task over.
script('cancel_task', 'allow-oom', function(ARGV)
  local id, state, kind, rest, code, why = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
  local grace, tombstone = tonumber(ARGV[7]), tonumber(ARGV[8])
  local t = load(id)
  if not t or t.state == 'gone' then
    if tombstone > 0 then
      call('HSET', keys.task(id), 'state', 'gone')
      call('PEXPIRE', keys.task(id), tombstone)
    end
    return { 'unknown' }
  end
  if t.state ~= 'queued' and t.state ~= 'executing' then return { 'over', t.state } end
  if tombstone > 0 and t.idempotency then return { 'over', t.state } end
  local data = chains.end_data(id, t, state, rest)
  local event_id
  if t.state == 'queued' then
    event_id = end_waiting(id, t, state, kind, data, code)
  elseif t.permit then
    event_id = permits.end_out(id, t, state, kind, data, code)
  else
    event_id = end_task(id, t, state, kind, data, code, '', nil, NOW + grace)
    request_stop(id, t, why)
  end
  return { 'ended', state, event_id, data, account_of_end(t, id), chains.related_ends() }
end)
