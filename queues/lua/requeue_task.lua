-- requeue_task: give a granted task back to its old place, because its worker is gone or declines it
-- KEYS[1]  prefix of the pool
-- ARGV[1]  task id
-- ARGV[2]  epoch of the grant
-- ARGV[3]  grant token
-- ARGV[4]  why, for the record: of a failure its code
-- ARGV[5]  lost: the worker is gone | failed: it failed, a retry may help | falls: it failed, and only another model may help (these
--          count a try if it had begun) | declined | repair: it has answered, and is asked again, once a task
-- ARGV[6]  1: the worker had begun
-- ARGV[7]  why the task may be the reason that its worker was lost (the record's `last_lost`)
-- ARGV[8]  ms for which the model is held, because its provider said: not before (0: it is not); where its worker names an upstream,
--          only that one; of those that share the line of '*' only the one that was asked for. Three times; a task that is refused more often stands aside by itself
-- ARGV[9…] rest fragment and code of the ends it may come to: worker lost, no worker left, out of time
-- ARGV[15…] names and values of what comes with a cause: of a repair its `payload`, and what was used: `input` and `output`, tokens,
--          and `more` (records.lua); `unsent`, 1: no worker has begun it, and no request was sent; `grace`: ms for which a task with a waiting
--          caller waits if no worker is left; `aside`: ms for which it stands aside; of a hold `by`: its worker
-- returns  {'queued', when it may start a task (wake_or_note) or {}, the model that it asks for now} | {'ended', event id, type, data, account of the end (endings.lua), accounts of tasks that ended with it} |
--          {'stale', state}. Repeated, it says 'ended' again, without the account, or is 'stale'.
script('requeue_task', 'allow-oom', function(ARGV)
  local id, token = ARGV[1], ARGV[3]
  local t, with = load(id), {}
  for i = 15, #ARGV, 2 do with[ARGV[i]] = ARGV[i + 1] end
  local repair = ARGV[5] == 'repair' and { payload = with.payload, used = { with.input, with.output, with.more } } or nil
  if not t or t.epoch ~= ARGV[2] or t.grant_token ~= token then return { 'stale', t and t.state or 'unknown' } end
  if t.state ~= 'executing' then
    if release(id, t, repair and repair.used) then
      settle(t, repair and num(with.input) or -1, repair and num(with.output) or -1, false)
      wake(t.model)
      wake_elsewhere(t)
    end
    if t.end_nonce ~= token then return { 'stale', t.state } end
    local entry = call('XRANGE', keys.log(id), t.end_id, t.end_id)[1]
    return entry and { 'ended', t.end_id, entry[2][2], entry[2][4] } or { 'stale', t.state }
  end
  local failures = {
    lost = { rest = ARGV[9], code = ARGV[10] },
    no_worker = { rest = ARGV[11], code = ARGV[12] },
    timeout = { rest = ARGV[13], code = ARGV[14] },
  }
  local hold, alone_until = tonumber(ARGV[8]), with.aside and NOW + num(with.aside) or nil
  local refused = hold > 0 and call('HINCRBY', keys.task(id), 'throttled', '1') or 0
  if refused > 3 then -- it may be for this task alone: it waits longer each time, and the others are asked for
    alone_until = NOW + math.max(hold, math.min(math.max(hold, 1000) * (refused - 3), 300000))
  elseif hold > 0 and t.requested_model then
    cool_down_name(t.requested_model, hold)
  elseif hold > 0 and not (t.upstream and upstreams.hold(t.model, t.upstream, hold, with.by)) then
    upstreams.extend_hold(keys.model(t.model), NOW + hold, with.by)
  end
  local worker_survived = t.last_lost and not with.unsent and ARGV[5] ~= 'lost'
  if with.unsent then windows.forget(t.model, id, t.epoch) end
  if worker_survived then call('HDEL', keys.task(id), 'last_lost') end
  local freed = t.model
  local works = repair ~= nil or upstreams.verdict_of(id, ARGV[4])
  if works ~= nil then upstreams.note(t, works, ARGV[4]) end
  local outcome, event_id, kind, data = put_back(id, t, ARGV[4], ARGV[5], ARGV[6] == '1', failures, token, ARGV[7], hold > 0, alone_until,
    repair, with.grace)
  local later = wake_or_note(t.model, {})
  if t.model ~= freed then wake(freed) end
  wake_elsewhere(t)
  if outcome == 'queued' then return { outcome, later, t.requested_model or t.model } end
  return { outcome, event_id, kind, data, account_of_end(t, id), chains.related_ends() }
end)
