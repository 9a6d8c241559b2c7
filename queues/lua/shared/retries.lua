-- The history of a task's attempts with this one behind it, at most about 2,000 bytes.
local function history(t, why)
  local worker = string.gsub(t.worker or '', '[|;]', '_')
  local entry = worker .. '|' .. t.granted_at .. '|' .. NOW .. '|' .. string.gsub(why, '[|;]', ',')
  local all = t.history and t.history .. ';' .. entry or entry
  while #all > 2000 and string.find(all, ';', 1, true) do all = string.gsub(all, '^[^;]*;', '') end
  return all
end

-- Whether nothing of a model starts, as the breakers of its upstreams are open: who waits for a task that failed is not kept waiting.
local function is_broken(m)
  if call('HGET', keys.model(m), 'upstream_state') ~= '2' then return false end
  local at, why = upstreams.blocked_until(m)
  return at > 0 and why == 'open'
end

-- The end of a task whose time is over, with what it waited for: 'queue' | 'worker' | 'cooldown' | 'model': a worker had it.
local function late_end(why, waited_for)
  return { rest = why.rest .. ',"waitedFor":"' .. waited_for .. '"', code = why.code }
end

-- Close the books on a running attempt and put its task back to its old place, or end it.
-- `cause`: 'lost' (the worker is gone), 'failed' (a retry may help), 'falls' (only another model may help), 'declined' (which costs
-- no try) or 'repair' (which costs none either: its answer is asked for again, with `repair`, the `payload` for that and what it `used`). `begun`: the worker had
-- begun, although no renewal said so. `failures`: rest and code of the ends it may come to, {lost, no_worker, timeout};
-- `nonce` names the call, if it may be repeated; `suspicion`: why the task may be the reason that its worker was lost, '' if it is
-- not; `held`: its model is held; `alone_until`: it stands aside until then; `grace`: ms for which a task with a waiting caller waits if no
-- worker is left. A task ends after 100 attempts anyhow, and after 1,000 if its provider refuses them: each is an event of its log.
-- A task of one try (`max_tries`) ends with its worker, also if it is not known that the worker began.
-- Returns 'queued' | 'ended', and the terminal event's id, kind and data.
local function put_back(id, t, why, cause, begun, failures, nonce, suspicion, held, alone_until, repair, grace)
  release(id, t)
  local key = keys.task(id)
  call('HSET', key, 'history', history(t, why))
  if begun and not t.begun then
    t.begun, t.tries = '1', string.format('%d', num(t.tries) + 1)
    call('HSET', key, 'tries', t.tries)
  end
  if (cause == 'declined' or repair) and t.begun then -- a renewal counted it as a try, which it was not
    t.tries = string.format('%d', math.max(num(t.tries) - 1, 0))
    call('HSET', key, 'tries', t.tries)
  end
  local give_up
  if repair and t.repair ~= '1' then
    give_up = failures.lost
  elseif t.first_output_at or num(t.attempt) - num(t.attempts_before) >= (held and 1000 or 100) then
    give_up = failures.lost
  elseif cause ~= 'declined' and not repair and (t.begun or t.max_tries == '1') then
    -- of one try it is unknown how far its worker has come
    if t.max_tries == '1' or num(t.tries) >= num(t.max_tries or '3') then give_up = failures.lost end
    if (suspicion or '') ~= '' then call('HSET', key, 'last_lost', suspicion) end
  end
  local other, failed
  if not give_up and t.fallbacks then
    failed = cause == 'falls' or cause == 'failed' and t.begun
    other = (failed or blocked_until(t.requested_model or t.model) > NOW + num(t.fallback_after)) and next_open_fallback(t)
  end
  if not give_up and cause == 'falls' and not other then give_up = failures.lost end
  if not give_up and not other and t.waiting == '1' and cause == 'failed' and t.begun and is_broken(t.model) then
    give_up = failures.lost
  end
  if not give_up and held and not other and num(t.deadline) > 0 then -- it would wait in vain
    if (alone_until or cooldown_of(t.requested_model or t.model)) >= num(t.deadline) then give_up = failures.lost end
  end
  if not give_up and t.waiting == '1' and not other and not is_offered(t.requested_model or t.model) then
    if repair or num(grace) == 0 then
      give_up = repair and failures.lost or failures.no_worker
    else
      t.stranded_until = whole(NOW + grace)
      call('HSET', key, 'stranded_until', t.stranded_until)
    end
  end
  if not give_up and passed(t.deadline) then give_up = late_end(failures.timeout, 'model') end
  if give_up then
    if repair then
      settle(t, num(repair.used[1]), num(repair.used[2]), false)
    elseif t.first_output_at then
      settle(t, -1, -1, false)
    else
      refund(t)
      if t.limits then settle_limits(t, t.stage_entered_at and 0 or nil) end
    end
    local data = chains.end_data(id, t, 'failed', give_up.rest)
    local event_id = end_task(id, t, 'failed', 'error', data, give_up.code, nonce, nil, nil, nil, repair and repair.used)
    return 'ended', event_id, 'error', data
  end
  if repair then
    settle(t, num(repair.used[1]), num(repair.used[2]), false, true)
    repairs.note(id, t, repair.used)
    repairs.replace_payload(id, t, repair.payload)
  else
    refund(t)
  end
  t.state = 'queued'
  call('HSET', key, 'state', 'queued', 'grant_token', '', 'owner', '', 'attempt_deadline', '0')
  if t.wait_deadline then -- running was not waiting
    t.wait_deadline = whole(num(t.wait_deadline) + NOW - num(t.granted_at))
    call('HSET', key, 'wait_deadline', t.wait_deadline)
  end
  call('HDEL', key, 'worker', 'begun', 'granted_at', 'upstream', 'probe')
  t.upstream, t.probe = nil, nil
  if other then
    move_to_fallback(id, t, other, not t.begun or cause == 'declined' or cause == 'lost' or repair,
      failed and why or blocked_by_code(t.requested_model or t.model))
    if failed and t.repair and t.repair ~= '1' then -- the other one's answer alone is paid, as ever
      t.repair = '2'
      call('HSET', key, 'repair', t.repair)
    end
    held, alone_until = false, nil
  end
  local aside_until = alone_until or (held and name_cooldown_until(t))
  if aside_until then
    set_aside(id, t, aside_until)
  elseif t.requested_model and scheduled_as(t.requested_model) == t.requested_model then -- a worker offers it by its name now
    enqueue_by_name(id, t)
  else
    enqueue(id, t)
  end
  call('ZADD', keys.due(), wait_instant(t), id)
  return 'queued'
end
