-- The history of a task's attempts with this one behind it, at most about 2,000 bytes.
local function history(t, why)
  local worker = string.gsub(t.wk or '', '[|;]', '_')
  local entry = worker .. '|' .. t.ga .. '|' .. NOW .. '|' .. string.gsub(why, '[|;]', ',')
  local all = t.hi and t.hi .. ';' .. entry or entry
  while #all > 2000 and string.find(all, ';', 1, true) do all = string.gsub(all, '^[^;]*;', '') end
  return all
end

-- Whether nothing of a model starts, as the breakers of its upstreams are open: who waits for a task that failed is not kept waiting.
local function is_broken(m)
  if call('HGET', keys.model(m), 'ups') ~= '2' then return false end
  local at, why = upstreams.barred(m)
  return at > 0 and why == 'open'
end

-- Close the books on a running attempt and put its task back to its old place, or end it.
-- `cause`: 'lost' (the worker is gone), 'failed' (a retry may help), 'falls' (only another model may help), 'declined' (which costs
-- no try) or 'repair' (likewise: its answer is asked for again, with `repair`, the `payload` for that and what it `used`). `begun`: the worker had
-- begun, although no renewal said so. `failures`: rest and code of the ends it may come to, {lost, no_worker, timeout};
-- `nonce` names the call, if it may be repeated; `who` the worker that was lost: two different ones end the task; `held`: its
-- model is held; `alone_until`: it stands aside until then. A task ends after 100 attempts anyhow, and after 1,000 if its provider refuses them: each is an event of its log.
-- A task of one try (`mt`) ends with its worker, also with one of which nobody has heard that it began.
-- Returns 'queued' | 'ended', and the terminal event's id, kind and data.
local function put_back(id, t, why, cause, begun, failures, nonce, who, held, alone_until, repair)
  release(id, t)
  note_failed(t)
  local key = keys.task(id)
  call('HSET', key, 'hi', history(t, why))
  if begun and not t.bg then
    t.bg, t.tr = '1', string.format('%d', num(t.tr) + 1)
    call('HSET', key, 'tr', t.tr)
  end
  if (cause == 'declined' or repair) and t.bg then -- a renewal counted it as a try, which it was not
    t.tr = string.format('%d', math.max(num(t.tr) - 1, 0))
    call('HSET', key, 'tr', t.tr)
  end
  local give_up
  if repair and t.rp ~= '1' then
    give_up = failures.lost
  elseif t.fo or num(t.at) - num(t.ab) >= (held and 1000 or 100) then
    give_up = failures.lost
  elseif cause ~= 'declined' and not repair and (t.bg or t.mt == '1') then
    -- of one try nobody knows how far its worker has come
    if t.mt == '1' or num(t.tr) >= num(t.mt or '3') then give_up = failures.lost end
    if cause == 'lost' and (who or '') ~= '' then
      if t.ls and t.ls ~= who then give_up = failures.lost end
      call('HSET', key, 'ls', who)
    end
  end
  local other, failed
  if not give_up and t.fb then
    failed = cause == 'falls' or cause == 'failed' and t.bg
    other = (failed or barred_until(t.an or t.m) > NOW + num(t.fa)) and open_to(t)
  end
  if not give_up and cause == 'falls' and not other then give_up = failures.lost end
  if not give_up and not other and t.wt == '1' and cause == 'failed' and t.bg and is_broken(t.m) then give_up = failures.lost end
  if not give_up and t.wt == '1' and not other and not is_offered(t.an or t.m) then
    give_up = repair and failures.lost or failures.no_worker
  end
  if not give_up and passed(t.dl) then give_up = failures.timeout end
  if give_up then
    if repair then
      settle(t, num(repair.used[1]), num(repair.used[2]), false)
    elseif t.fo then
      settle(t, -1, -1, false)
    else
      refund(t)
      if t.lm then settle_limits(t, t.se and 0 or nil) end
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
  t.st = 'queued'
  call('HSET', key, 'st', 'queued', 'gt', '', 'ow', '', 'xd', '0')
  if t.wd then -- running was not waiting
    t.wd = whole(num(t.wd) + NOW - num(t.ga))
    call('HSET', key, 'wd', t.wd)
  end
  call('HDEL', key, 'wk', 'bg', 'ga', 'up', 'bp')
  t.up, t.bp = nil, nil
  if other then
    fall_on(id, t, other, not t.bg or cause == 'declined' or cause == 'lost' or repair, failed and why or barred_by(t.an or t.m))
    if failed and t.rp and t.rp ~= '1' then -- the other one's answer alone is paid, as ever
      t.rp = '2'
      call('HSET', key, 'rp', t.rp)
    end
    held, alone_until = false, nil
  end
  local aside_until = alone_until or (held and name_held_until(t))
  if aside_until then
    stand_aside(id, t, aside_until)
  elseif t.an and scheduled_as(t.an) == t.an then -- somebody offers it by its name now
    enqueue_by_name(id, t)
  else
    enqueue(id, t)
  end
  call('ZADD', keys.look(), wait_instant(t), id)
  return 'queued'
end
