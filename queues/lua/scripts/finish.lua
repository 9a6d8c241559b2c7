-- finish: end a running task and take for the freed slot, over all models its worker serves
-- args      id, epoch and token of the grant; state, code; seq: number of the first event (0: the caller is not the log's writer), kinds: types
--           of the last events; kind of the terminal event; used: tokens, as far as they are known; keep_ms: the slot stays `stopping` for
--           this long, because the worker still runs the task; and the arguments of granting.take
-- strings   the data of the last events, and of the terminal one
-- returns   {outcome, event_id, later, top, ended}, and grants. outcome: 'ok' | 'late': another call ended it, its slot is free now | 'stale': the
--           grant is not current | 'hole': events are missing, the log ends at `top`. A repeated call returns the same. ended: accounts of
--           tasks that ended with it
script('finish', 'allow-oom', function(ask, args)
  local task = records.load(ask.id) or {}
  local current = task.epoch == ask.epoch and task.token == ask.token
  if current and task.state == 'executing' then
    local top = log.close(task)
    if ask.seq > top + 1 then return { outcome = 'hole', top = top } end
    hooks.each('finishes', task, ask)
    local stays = ask.keep_ms ~= nil
    if not stays then ending.release(task) end
    local own = ending.log_last(task, ask.seq, ask.kinds, args, ask.replica)
    if not stays then ending.settle(task, ask.used, ask.state == 'completed') end
    hooks.each('attempted', task, ask.state ~= 'completed' and ask.code or nil)
    local event_id = ending.finish(task, { state = ask.state, kind = ask.kind, data = args[#ask.kinds + 2], code = ask.code, nonce = ask.nonce },
      { epoch = own, except = ask.replica, used = ask.used, stop_until = stays and NOW + ask.keep_ms or nil })
    local grants, ids, later = {}, {}, {}
    if not stays and ask.want > 0 then
      grants, ids, later = granting.take(ask, task.model)
      if ids[1] then
        task.granted = ids
        records.save(task)
      end
    elseif not stays then
      waking.wake(task.model, later)
    end
    if not stays then waking.wake_elsewhere(task) end
    return { outcome = 'ok', event_id = event_id, later = later, ended = ending.related() }, unpack(grants)
  end
  if current and task.end_nonce == ask.nonce then
    return { outcome = 'ok', event_id = task.end_id, later = {} }, unpack(granting.repeat_grants(task.granted, ask.nonce))
  end

  local freed
  if current and not ask.keep_ms and ending.release(task) then
    if ask.used.input or ask.used.output then task.used = ask.used end
    ending.settle(task, ask.used, false)
    ending.close(task)
    freed = task.model
  end
  local grants, later = {}, {}
  if ask.want > 0 then
    grants, later = granting.take_once(ask, freed)
  elseif freed then
    waking.wake(freed)
  end
  if freed then waking.wake_elsewhere(task) end
  return { outcome = current and 'late' or 'stale', later = later }, unpack(grants)
end, 'many')
