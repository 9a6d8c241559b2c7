-- load_balance: what SQL knows of what a key or user can pay with; of one that is known here grants that are newer, and a window that is not
-- KEYS[1]  prefix of the pool
-- ARGV[1]  subject (limits.lua)
-- ARGV[2]  micro-credits that were granted, and number of the last grant
-- ARGV[4]  what its tasks have cost of these, and the highest number that SQL has of one
-- ARGV[6…] a window of its budget, and what its tasks have cost of that
-- returns  1 it was not known | 0
script('load_balance', nil, function(ARGV)
  local subject, granted, grants, window = ARGV[1], ARGV[2], ARGV[3], ARGV[6]
  local balance = keys.balance(subject)
  local known = call('HGET', balance, 'balance')
  if not known then
    call('DEL', balance)
    local generation = whole(call('HINCRBY', keys.pool(), 'generation', '1'))
    call('HSET', balance, 'balance', granted, 'granted', granted, 'last_grant', grants, 'settled', whole(ARGV[5] + 1),
      'generation', generation)
    mark(balance)
    take_from(balance, ARGV[4])
    call('ZADD', keys.balances(), NOW_TEXT, subject)
  else
    grant_credits(balance, granted, grants)
  end
  if window and call('HEXISTS', balance, 'spent:' .. window) == 0 then begin_window(balance, window, ARGV[7]) end
  return known and 0 or 1
end)
