-- use_permit: use a permit, once; from then on it holds its slot until its end is reported, or its time is over
-- KEYS[1]  prefix of the pool
-- ARGV[1]  task id
-- ARGV[2]  epoch of the grant that the permit is of
-- ARGV[3]  nonce of this call
-- returns  {'in', when the next one may start (wake_or_note) or {}} now, or before by the same call | {'used'} before | {'over'} it was not used in time, its
--          task was cancelled, or a later attempt has another permit | {'unknown'} task
script('use_permit', 'allow-oom', function(ARGV)
  local id, epoch, nonce = ARGV[1], ARGV[2], ARGV[3]
  local key = keys.task(id)
  local st, ep, pm, m, pb, ar, u = unpack(call('HMGET', key, 'state', 'epoch', 'permit', 'model', 'payload_bytes', 'archive', 'user'))
  if not st or st == 'gone' then return { 'unknown' } end
  local permit = ep == epoch and permits.read({ permit = pm }) or nil
  if not permit then return { 'over' } end
  if permit.used then
    if permit.nonce == nonce and st == 'executing' then return { 'in', {} } end
    return { 'used' }
  end
  if st ~= 'executing' or permit.till <= NOW then return { 'over' } end
  permit.till, permit.used_at, permit.nonce = NOW + permit.used_ms, NOW_TEXT, nonce
  call('HSET', key, 'permit', permits.text(permit), 'first_output_at', NOW_TEXT)
  drop_payload(id, pb, ar, u)
  permits.keep(id, m, permit.till)
  if not call('HGET', keys.model(m), 'windows') then return { 'in', {} } end
  windows.note(m, id, epoch, false, permits.TRANSIT) -- its window lasts from when its request has arrived at the endpoint
  return { 'in', wake_or_note(m, {}) }
end)
