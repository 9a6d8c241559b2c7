-- What keys and users with a quota pay for their tasks: from credits that were granted to them, and from a budget that is renewed
-- each day or month. Amounts are whole micro-credits. A subject is one of limits.lua; what it has lies in its hash (keys.py,
-- BALANCE), as loaded from SQL (load_balance.lua): an unknown balance is loaded first, and no task is accepted by guess.
--
-- A task is held the price of the most that it may use, as far as that is specified or learned, from the budget's window first, and its
-- record says what from where (`reserved_credits`):
-- whose, from what was granted, from the window, that window and its budget (none: -), and the generation of the balance: one
-- that was lost and loaded again has another. Its one end gives that back and takes what it
-- costs instead (`settle_credits`), numbers that for the subject, and goes to SQL with the task's usage record: so it happens once, and
-- what lies in the hash is the sum of what SQL has and of what is on its way there.
--
-- A window is named by its kind, d or m, and its end (ms). The hash knows the last two, and of older ones what is held of them.
local cost_of, most_cost_of, funds_of, begin_window, reserved_by, reserve_credits, reserve_more, settle_credits, take_from, mark, grant_credits
do
local MAX_TOKENS = 4194304 -- of one task, each way; as in endings.lua
local UNKNOWN_OUTPUT = 4096 -- of a model that has not answered yet
local MAX_REPAIRED, REPAIR_WORDS = 16384, 512 -- tokens of an answer that its model gets back, and of the error in it
local MAX_DIGITS = 15 -- of a balance with which numbers here are exact, whatever a task takes of it

-- Prices of a million tokens of input, cached ones, output and reasoning, each as millions and what is over, so that no product is
-- beyond what numbers here hold exactly; and the price of a task.
local parse_price = memoize(function(text)
  local price = {}
  for number in string.gmatch(text, '%d+') do
    local over = number % 1000000
    price[#price + 1], price[#price + 2] = (number - over) / 1000000, over
    price.request = number + 0 -- the last
  end
  local function dearer(a, b) return price[a] > price[b] or price[a] == price[b] and price[a + 1] > price[b + 1] end
  price.cached_is_dear, price.thought_is_dear = dearer(3, 1), dearer(7, 5)
  return price
end)

local function within(text, most)
  local number = num(text)
  return number < 0 and 0 or number > most and most or number
end

-- What these tokens cost, by the field `price` of a task; rounded up, once. What is not known is none; cached ones are some of the
-- input, reasoning ones some of the output.
function cost_of(pc, input, output, cached, reasoning)
  local p = parse_price(pc)
  input, output = within(input, MAX_TOKENS), within(output, MAX_TOKENS)
  cached, reasoning = within(cached, input), within(reasoning, output)
  input, output = input - cached, output - reasoning
  return p.request + input * p[1] + cached * p[3] + output * p[5] + reasoning * p[7]
    + math.ceil((input * p[2] + cached * p[4] + output * p[6] + reasoning * p[8]) / 1000000)
end

-- What a task may cost: its input, and all the output that it asks for; where it does not say how much, as much as the longest
-- answer of its model recently (`longest_output`, 0: none is known), for each that it asks for. `pc`: its price, as in the record. An
-- answer that
-- may be repaired may be written twice, and the second time the first is part of the input, as far as it is sent (repair.py).
function most_cost_of(t, top, pc)
  local p, output = parse_price(pc), num(t.max_output)
  if output == 0 then output = (top > 0 and top or UNKNOWN_OUTPUT) * math.max(num(t.answers), 1) end
  local input = t.max_input or t.input_tokens
  if t.repair then input, output = 2 * num(input) + math.min(output, MAX_REPAIRED) + REPAIR_WORDS, 2 * output end
  return cost_of(pc, input, output, p.cached_is_dear and input, p.thought_is_dear and output)
end

-- A quota as submit is given it: k or u, whose it is; and where there is a budget, that, its kind, and the ends of the window before
-- this one, of this one and of the next, as the gateway's clock says. `windows`: of each when it ends, its name, those of the fields
-- of what was spent and is held of it, and what a record's hold says of it. Without a budget there is one window, which is empty.
local parse_quota = memoize(function(text)
  local whose, budget, kind, before, this, next = string.match(text, '^(%l) (%d+) (%l) (%d+) (%d+) (%d+)$')
  if not whose then return { whose = text, budget = 0, windows = { { name = '', told = ' - 0 ' } } } end
  local quota = { whose = whose, budget = budget + 0, kind = kind, windows = {} }
  for i, ends in ipairs({ before, this, next }) do
    local name = kind .. ends
    quota.windows[i] = { ends = ends + 0, name = name, spent = 'spent:' .. name, reserved = 'reserved:' .. name,
      told = ' ' .. name .. ' ' .. budget .. ' ' }
  end
  return quota
end)

local function payer(u, whose)
  if whose == 'u' then return 'u:' .. u end -- as in subjects_of
  local slash = string.find(u, '/', 1, true)
  return slash and 'k:' .. string.sub(u, 1, slash - 1) or 'k:' .. u
end

-- What a user's task can be paid from: {quota, window (of parse_quota), the `balance`'s key, its generation, what is `held`, what is
-- left of `granted`, and of its budget as `room`, and whether the window `begins`}. nil, subject and window ('' if there is none): SQL
-- must be asked for it.
function funds_of(u, text)
  local quota, number = parse_quota(text), 1
  local windows, subject = quota.windows, payer(u, quota.whose)
  local balance, window = keys.balance(subject), windows[1]
  if not window.ends then
    local s = call('HMGET', balance, 'balance', 'reserved', 'generation')
    if not s[1] then return nil, subject, '' end
    local held = num(s[2])
    return {
      quota = quota, window = window, balance = balance, generation = s[3] or '0', held = held, granted = math.max(s[1] - held, 0),
      room = 0,
    }
  end
  while number < 3 and window.ends <= NOW do -- the clocks may differ: it counts when the window is over here
    number = number + 1
    window = windows[number]
  end
  local s, begins = call('HMGET', balance, 'balance', 'reserved', 'generation', 'window_1', window.spent, window.reserved), false
  if not s[1] then return nil, subject, window.name end
  if not s[5] then
    local kind, ends = string.match(s[4] or '', '^(%l)(%d+)$')
    if kind ~= quota.kind or ends + 0 > window.ends then return nil, subject, window.name end
    begins = true
  end
  local held, window_held = num(s[2]), num(s[6])
  return {
    quota = quota, window = window, balance = balance, generation = s[3] or '0', held = held, granted = math.max(s[1] - held, 0),
    window_held = window_held, room = math.max(quota.budget - num(s[5]) - window_held, 0), begins = begins,
  }
end

-- A window is the last one used: the one before the last before it is forgotten.
function begin_window(balance, window, spent)
  local last, before = unpack(call('HMGET', balance, 'window_1', 'window_2'))
  if before then
    call('HDEL', balance, 'spent:' .. before)
    if num(call('HGET', balance, 'reserved:' .. before)) == 0 then call('HDEL', balance, 'reserved:' .. before) end
  end
  if last then call('HSET', balance, 'window_2', last) end
  call('HSET', balance, 'window_1', window, 'spent:' .. window, spent)
end

-- How much a task is held, by the field `reserved_credits` of its record; nil: it has no quota.
function reserved_by(qt)
  local granted, of_window = string.match(qt or '', '^%l (%d+) (%d+)')
  return granted and granted + of_window
end

-- Hold so much, which is there. Returns the field `reserved_credits` of the task's record.
function reserve_credits(funds, amount)
  local balance, window = funds.balance, funds.window
  if funds.begins then begin_window(balance, window.name, '0') end
  local of_window = math.min(amount, funds.room)
  local of_granted = amount - of_window
  if of_window == 0 then
    if of_granted > 0 then call('HSET', balance, 'reserved', whole(funds.held + of_granted)) end
  elseif of_granted == 0 then
    call('HSET', balance, window.reserved, whole(funds.window_held + of_window))
  else
    call('HSET', balance, window.reserved, whole(funds.window_held + of_window), 'reserved', whole(funds.held + of_granted))
  end
  local granted, windows = of_granted == 0 and '0' or whole(of_granted), of_window == 0 and '0' or whole(of_window)
  return funds.quota.whose .. ' ' .. granted .. ' ' .. windows .. window.told .. funds.generation
end

-- Let what is held by `qt` be held no more (`by` -1), or again (1).
local function move_reservation(u, qt, by)
  local whose, granted, of_window, window, _, generation = string.match(qt, '^(%l) (%d+) (%d+) (%S+) (%d+) (%d+)$')
  local balance = keys.balance(payer(u, whose))
  local known, its = unpack(call('HMGET', balance, 'balance', 'generation'))
  if not known or (its or '0') ~= generation then return end
  if granted ~= '0' then call('HINCRBY', balance, 'reserved', whole(by * granted)) end
  if of_window ~= '0' and call('HINCRBY', balance, 'reserved:' .. window, whole(by * of_window)) == 0
    and call('HEXISTS', balance, 'spent:' .. window) == 0 then
    call('HDEL', balance, 'reserved:' .. window)
  end
end

-- Hold so much in all for a task that is held `qt` (nil: nothing), of its quota as submit is given it. Returns the field
-- `reserved_credits`; or nil
-- and why not: {'quota', what it would be held, what is there} | {'no_balance', subject, window or ''}; nothing has changed then.
function reserve_more(u, qt, text, amount)
  if qt then move_reservation(u, qt, -1) end
  local funds, subject, window = funds_of(u, text)
  local refused
  if not funds then
    refused = { 'no_balance', subject, window }
  elseif amount > funds.granted + funds.room then
    refused = { 'quota', amount, funds.granted + funds.room }
  end
  if not refused then return reserve_credits(funds, amount) end
  if qt then move_reservation(u, qt, 1) end
  return nil, refused
end

-- A task that was held `qt` costs so much. What was held pays first, and of that the window; for more than was held: what is left of
-- the window's budget, of what is granted, and then the window, whose overrun ends with it; or where there is none, what is
-- granted, as a debt. What a balance reserved before it was lost and loaded again from SQL is not released: the cost is
-- taken all the same. Returns what the usage record says of it: whose, number, held and charged of what is granted, held and charged
-- of the window, and that.
function settle_credits(u, qt, cost)
  local whose, granted, of_window, window, budget, generation = string.match(qt, '^(%l) (%d+) (%d+) (%S+) (%d+) (%d+)$')
  granted, of_window = granted + 0, of_window + 0
  if granted + of_window + cost == 0 then return '' end
  local balance = keys.balance(payer(u, whose))
  local in_window, s = window ~= '-', nil
  if in_window then
    s = call('HMGET', balance, 'balance', 'reserved', 'generation', 'settled', 'spent:' .. window, 'reserved:' .. window)
  else
    s = call('HMGET', balance, 'balance', 'reserved', 'generation', 'settled')
  end
  local by_window = math.min(cost, of_window)
  local by_granted, number = cost - by_window, 0
  if s[1] then -- else it is not known any more: it is loaded from SQL when it is needed
    number = num(s[4]) + 1
    by_granted = math.min(by_granted, granted)
    local known, held, window_held, used = in_window and s[5], num(s[2]), num(s[6]), num(s[5])
    local same = (s[3] or '0') == generation
    if same then held, window_held = held - granted, window_held - of_window end
    local more = cost - by_window - by_granted
    if more > 0 then
      local room = known and math.max(budget - used - window_held - by_window, 0) or 0
      by_window, more = by_window + math.min(more, room), more - math.min(more, room)
      local left = in_window and math.max(s[1] - held - by_granted, 0) or more
      by_granted, more = by_granted + math.min(more, left), more - math.min(more, left)
      by_window = by_window + more
    end
    local exact = #s[1] <= MAX_DIGITS
    local n, h, b = whole(number), whole(held), exact and whole(s[1] - by_granted) or s[1]
    if known then
      call('HSET', balance, 'settled', n, 'reserved', h, 'balance', b, 'reserved:' .. window, whole(window_held),
        'spent:' .. window, whole(used + by_window))
    else
      call('HSET', balance, 'settled', n, 'reserved', h, 'balance', b)
      if same and of_window > 0 then
        if window_held > 0 then
          call('HSET', balance, 'reserved:' .. window, whole(window_held))
        else
          call('HDEL', balance, 'reserved:' .. window)
        end
      end
    end
    if not exact and by_granted > 0 then call('HINCRBY', balance, 'balance', whole(0 - by_granted)) end
  end
  return string.format('%s %d %d %d %d %d %s', whose, number, granted, by_granted, of_window, by_window, window)
end

-- Take so much, a text, from what was granted: sums may be beyond what numbers here hold exactly.
function take_from(balance, amount)
  if amount == '0' then return end
  call('HINCRBY', balance, 'balance', string.sub(amount, 1, 1) == '-' and string.sub(amount, 2) or '-' .. amount)
end

-- A mark of what SQL has said of a balance: another one each time.
function mark(balance, before)
  call('HSET', balance, 'sql_mark', whole(math.max(num(before) + 1, US)))
end

-- Set what was granted in all, and the number of grants; an older number changes nothing, except with `anyhow`.
function grant_credits(balance, granted, grants, anyhow)
  local known, number, before = unpack(call('HMGET', balance, 'granted', 'last_grant', 'sql_mark'))
  if granted == known and grants == number or num(grants) <= num(number) and not anyhow then return end
  take_from(balance, known)
  call('HINCRBY', balance, 'balance', granted)
  call('HSET', balance, 'granted', granted, 'last_grant', grants)
  mark(balance, before)
end
end
