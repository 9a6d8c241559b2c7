-- Close the books on a running attempt and put its task back to its old place, or end it.
-- `cause`: 'lost' (the worker is gone), 'failed' (a retry may help) or 'declined' (which costs no try). `failures`: rest fragments of the ends it may come to,
-- {lost, no_worker}. Returns 'queued' | 'ended', and the terminal event's id, kind and data.
local function put_back(id, t, why, cause, failures, except)
  release(id, t)
  local history = (t.hi and t.hi .. ';' or '') .. table.concat({ t.wk or '', t.ga, int(NOW), why }, '|')
  call('HSET', key_task(id), 'hi', history)
  local give_up
  if t.fo then
    give_up = failures.lost
  elseif cause ~= 'declined' and t.bg then
    if num(t.tr) >= 3 then give_up = failures.lost end
    local worker = t.wk or ''
    if cause == 'lost' and worker ~= '' then
      if t.ls and t.ls ~= worker then give_up = failures.lost end
      call('HSET', key_task(id), 'ls', worker)
      t.ls = worker
    end
  end
  if not give_up and t.wt == '1' and not is_offered(t.m) then give_up = failures.no_worker end
  if not give_up and num(t.xd) > 0 and num(t.dl) > 0 and num(t.dl) <= NOW then give_up = failures.timeout end
  if give_up then
    if not t.fo then refund(id, t) else settle(id, t, -1, -1) end
    local data = event_data(id, give_up.rest)
    local event_id = end_task(id, t, 'failed', 'error', data, give_up.code, except)
    return 'ended', event_id, 'error', data
  end
  refund(id, t)
  t.st = 'queued'
  call('HSET', key_task(id), 'st', 'queued', 'gt', '', 'ow', '', 'xd', '0')
  call('HDEL', key_task(id), 'wk', 'bg', 'ga')
  enqueue(id, t)
  call('ZADD', key_look(), wait_instant(t), id)
  return 'queued'
end
