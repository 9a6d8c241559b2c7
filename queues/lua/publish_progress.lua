-- publish_progress: publish the progress of a running task to its readers, and keep the last one for those who join
-- KEYS[1]  prefix of the pool
-- ARGV[1]  replica (it serves its own readers itself)
-- ARGV[2]  task id
-- ARGV[3]  epoch of the grant
-- ARGV[4]  grant token
-- ARGV[5]  type of the event, which is not logged
-- ARGV[6]  its data
-- returns  1 | 0 the grant is not current
script('publish_progress', nil, function(ARGV)
  local replica, id, epoch = ARGV[1], ARGV[2], ARGV[3]
  local state, current, token, readers = unpack(call('HMGET', keys.task(id), 'state', 'epoch', 'grant_token', 'readers'))
  if state ~= 'executing' or current ~= epoch or token ~= ARGV[4] then return 0 end
  call('HSET', keys.task(id), 'progress', epoch .. '\n' .. ARGV[6])
  for reader in string.gmatch(readers or '', '[^,]+') do
    if reader ~= replica then publish(reader, 'ephemeral\n' .. id .. '\n' .. ARGV[5] .. '\n' .. ARGV[6]) end
  end
  return 1
end)
