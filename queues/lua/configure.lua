-- configure: set weights and limits; they hold from the next decision on, on every replica
-- KEYS[1]  prefix of the pool
-- ARGV[1]  number of queues; then name, weight, max length (0: the default) of each
-- ARGV[…]  then model, limit (0: none), cost (tokens | requests) of each configured model; others lose theirs
-- returns  1
local queues = tonumber(ARGV[1])
local at = 2
for _ = 1, queues do
  call('SADD', key_queues(), ARGV[at])
  call('HSET', key_queue(ARGV[at]), 'weight', ARGV[at + 1], 'max_length', ARGV[at + 2])
  at = at + 3
end
local keep = {}
while at < #ARGV do
  local model = ARGV[at]
  keep[model] = true
  call('HSET', key_model(model), 'limit', ARGV[at + 1], 'cost', ARGV[at + 2], 'fixed', '1')
  call('ZADD', key_models(), 'GT', NOW, model)
  at = at + 3
end
for _, model in ipairs(call('ZRANGE', key_models(), 0, -1)) do
  if not keep[model] and call('HGET', key_model(model), 'fixed') then
    call('HDEL', key_model(model), 'limit', 'cost', 'fixed')
  end
  wake(model)
end
return 1
