-- Where a queued task stands: its position in its lane (from 1) and how long it may wait, in ms. Both are estimates: a fair
-- queue lets latecomers of other users pass. With r tasks of its own user ahead, A users waiting and its user at rank k, about
-- r * A + k tasks go first; they leave at the rate at which the model's slots come free, times the lane's share.
local function place(id, t)
  local rank = call('ZRANK', key_flow(t.q, t.m, t.u), id)
  if not rank then return 0, 0 end
  local flows = key_flows(t.q, t.m)
  local k = call('ZRANK', flows, t.u) or 0
  local users = call('ZCARD', flows)
  local model = call('HMGET', key_model(t.m), 'n:' .. t.q, 'ms', 'limit')
  local position = min(max(num(model[1]), 1), rank * users + k + 1)
  local mean = num(model[2])
  if mean == 0 then mean = 1000 end
  local total, own = 0, 0
  for _, q in ipairs(call('ZRANGE', key_lanes(t.m), 0, -1)) do
    local weight = num(call('HGET', key_queue(q), 'weight'))
    if weight <= 0 then weight = 1 end
    total = total + weight
    if q == t.q then own = weight end
  end
  local running = max(call('ZCARD', key_slots(t.m)), 1)
  local share = total > 0 and own > 0 and own / total or 1
  return position, floor(position * mean / (running * share))
end
