-- read_chain: what is known of a chain, at one moment
-- KEYS[1]  prefix of the pool
-- ARGV[1]  task id
-- ARGV[2]  1: with its plan and the results
-- returns  {state, stage (field `stage`), how many stages there are, how many parts this one has (0: it is in place), how many of them have been
--          granted, how many are done, field of its hash (keys.py, CHAIN), value, …} | {} it is none
script('read_chain', 'no-writes', function(ARGV)
  local st, sg, pn, pa = unpack(call('HMGET', keys.task(ARGV[1]), 'state', 'stage', 'parts', 'chain'))
  if not sg or pa then return {} end
  local key = keys.chain(ARGV[1])
  local of, todo, begun = unpack(call('HMGET', key, 'stages', 'todo', 'begun'))
  local reply = { st, sg, of or '0', num(pn), pn and num(begun) or 0, pn and num(pn) - num(todo) or 0 }
  if ARGV[2] == '1' then
    for _, part in ipairs(call('HGETALL', key)) do reply[#reply + 1] = part end
    return reply
  end
  local wanted = { 'head' }
  for _, field in ipairs(call('HKEYS', key)) do
    if string.find(field, '^result:') then
      reply[#reply + 1], reply[#reply + 2] = field, ''
    elseif string.find(field, '^usage:') then
      wanted[#wanted + 1] = field
    end
  end
  for i, value in ipairs(call('HMGET', key, unpack(wanted))) do
    reply[#reply + 1], reply[#reply + 2] = wanted[i], value or ''
  end
  return reply
end)
