-- change: set something of a queue or a model while running, and write down who did
-- KEYS[1]  prefix of the pool
-- ARGV[1]  queue | model
-- ARGV[2]  its name
-- ARGV[3]  who changes it
-- ARGV[4]  from which address
-- ARGV[5]  8 characters that tell the audit entry from others of this instant
-- ARGV[6…] setting, value, …; value '' = back to what is configured
--          Who changed a setting stands beside its value for as long as the change holds.
-- returns  {'ok', id of the audit entry, before, after} JSON objects of what held and holds for these settings | {'unknown'} queue
script('change', nil, function(ARGV)
  local kind, name, settings = ARGV[1], ARGV[2], {}
  if kind == 'queue' and call('SISMEMBER', keys.queues(), name) == 0 then return { 'unknown' } end
  for i = 6, #ARGV, 2 do settings[#settings + 1] = { ARGV[i], ARGV[i + 1] } end
  local entry, was, is = changing.set(kind, name, settings, ARGV[3], ARGV[4], ARGV[5])
  return { 'ok', entry, was, is }
end)
