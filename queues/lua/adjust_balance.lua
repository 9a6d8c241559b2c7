-- adjust_balance: correct a balance that differs from SQL
-- KEYS[1]  prefix of the pool
-- ARGV[1]  subject (limits.lua)
-- ARGV[2]  its field `sql_mark` when it was compared: with another mark it was corrected meanwhile
-- ARGV[3]  highest number of a task that SQL has
-- ARGV[4]  micro-credits that were granted, and number of the last grant
-- ARGV[6]  what is to be added to what its tasks have cost of these
-- ARGV[7…] its field `settled` when it was compared: it is forgotten, if that is so still and nothing is held; '': it stays
-- ARGV[8…] windows of its budget, each with what is to be added to what tasks have cost of it
-- returns  1 done | 0
script('adjust_balance', 'allow-oom', function(ARGV)
  local subject = ARGV[1]
  local balance = keys.balance(subject)
  local token, number = unpack(call('HMGET', balance, 'sql_mark', 'settled'))
  if token ~= ARGV[2] then return 0 end
  if ARGV[7] ~= '' then
    if number ~= ARGV[7] then return 0 end
    local fields = call('HGETALL', balance)
    for i = 1, #fields, 2 do
      if string.sub(fields[i], 1, 8) == 'reserved' and num(fields[i + 1]) > 0 then return 0 end
    end
    call('DEL', balance)
    call('ZREM', keys.balances(), subject)
    return 1
  end
  grant_credits(balance, ARGV[4], ARGV[5], true)
  take_from(balance, ARGV[6])
  for i = 8, #ARGV, 2 do
    if call('HEXISTS', balance, 'spent:' .. ARGV[i]) == 1 then call('HINCRBY', balance, 'spent:' .. ARGV[i], ARGV[i + 1]) end
  end
  if num(number) < num(ARGV[3]) then -- numbers were lost: from here on it can be compared
    call('HSET', balance, 'settled', ARGV[3])
    call('ZADD', keys.balances(), NOW_TEXT, subject)
  end
  mark(balance, call('HGET', balance, 'sql_mark'))
  return 1
end)
