-- Credits: keys and users with a quota pay for their tasks, from granted credits and from a budget that is renewed each day or month. Amounts
-- are whole micro-credits. A subject is a key or a user (limits.lua). Its balance is in a hash (keys.py, BALANCE) that is loaded from SQL. If it
-- is not loaded, the gateway loads it first, and no task is accepted without it.
--
-- A task reserves the price of the most that it can use, as far as that is specified or learned, from the budget's window first. Its record
-- has the reservation (`reserved`): the subject (`whose`), the part from `granted` credits, the part from the `window`, that window and its
-- budget, and the `generation` of the balance, which changes when a balance was lost and loaded again. The end of the task, which happens once,
-- releases the reservation, debits the cost, numbers the payment, and sends it to SQL with the usage record. So the balance in the hash is the
-- sum of what SQL has and of what is on its way there.
--
-- The name of a window is its kind, d or m, and its end (ms). The hash has the last two windows, and reservations of older ones.
local credits = {}
local MAX_TOKENS = 4194304 -- of one task, each way
local UNKNOWN_OUTPUT = 4096 -- of a model that has not answered yet
local MAX_REPAIRED, REPAIR_WORDS = 16384, 512 -- tokens of an answer that its model gets again for repair, and of the error
local MAX_DIGITS = 15 -- of a balance whose changes are exact in Lua's numbers

-- Parse the prices of a million tokens of input, cached input, output and reasoning, each as quotient and remainder by a million, so that all
-- products are exact in Lua's numbers; and the price of a task.
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

local function within(number, most) return math.max(math.min(number or 0, most), 0) end

-- Return the cost of these tokens, rounded up once. Unknown counts are 0. Cached tokens are part of the input, reasoning tokens part of the
-- output.
local function cost_of(price, used)
  local p = parse_price(price)
  local input, output = within(used.input, MAX_TOKENS), within(used.output, MAX_TOKENS)
  local cached, reasoning = within(used.cached, input), within(used.reasoning, output)
  input, output = input - cached, output - reasoning
  return p.request + input * p[1] + cached * p[3] + output * p[5] + reasoning * p[7]
    + math.ceil((input * p[2] + cached * p[4] + output * p[6] + reasoning * p[8]) / 1000000)
end

-- Return the most that a task can cost by a price: its input, and the output that it allows. Without a limit of the output, assume the longest
-- recent answer of its model, for each requested answer. An answer that can be repaired can be written twice; the first one is then part of the
-- second input, up to MAX_REPAIRED.
local function most_cost(task, longest, price)
  local p, output = parse_price(price), task.max_output or 0
  if output == 0 then output = (longest > 0 and longest or UNKNOWN_OUTPUT) * math.max(task.answers or 1, 1) end
  local input = task.max_input or task.input_tokens or 0
  if task.repair then input, output = 2 * input + math.min(output, MAX_REPAIRED) + REPAIR_WORDS, 2 * output end
  return cost_of(price, { input = input, output = output, cached = p.cached_is_dear and input or 0, reasoning = p.thought_is_dear and output or 0 })
end

-- Return the most that a task can cost, on its own model and on its fallback models; nil: it costs nothing.
function credits.most_cost(task)
  if task.parts then
    local sum
    task.part_costs = {}
    for i, input in ipairs(task.part_inputs) do
      local part = setmetatable({ parts = false, input_tokens = input[1], max_input = input[2] or false }, { __index = task })
      local most = credits.most_cost(part)
      sum, task.part_costs[i] = most and (sum or 0) + most, most
    end
    return sum
  end
  local longest, most = models.get(task.model).longest_output or 0, nil
  if task.price then most = most_cost(task, longest, task.price) end
  for _, other in ipairs(task.fallbacks or {}) do
    if other[2] ~= '' then most = math.max(most or 0, most_cost(task, longest, other[2])) end
  end
  return most
end

-- Parse a quota as in the arguments of submit: k or u (the payer); and with a budget its amount, its kind, and the ends of the last window, the
-- current one and the next, by the gateway's clock. `windows`: for each its end, its name, and the fields for the spent and the reserved amount.
-- Without a budget there is one empty window.
local parse_quota = memoize(function(text)
  local whose, budget, kind, before, this, next = string.match(text, '^(%l) (%d+) (%l) (%d+) (%d+) (%d+)$')
  if not whose then return { whose = text, budget = 0, windows = { { name = '-' } } } end
  local quota = { whose = whose, budget = budget + 0, kind = kind, windows = {} }
  for i, ends in ipairs({ before, this, next }) do
    local name = kind .. ends
    quota.windows[i] = { ends = ends + 0, name = name, spent = 'spent:' .. name, reserved = 'reserved:' .. name }
  end
  return quota
end)

local function payer(user, whose)
  local key, own = limits.subjects(user)
  return whose == 'u' and own or key
end

-- Return the funds for a user's task: {quota, window, the key of the `balance`, its generation, the reserved amount `held`, what is left of the
-- `granted` credits, what is left of the budget (`room`), and whether the window `begins`}; nil: the balance of this subject and window ('':
-- none) must be loaded from SQL.
local function funds_of(user, text)
  local quota, number = parse_quota(text), 1
  local windows, subject = quota.windows, payer(user, quota.whose)
  local balance, window = keys.balance(subject), windows[1]
  if not window.ends then
    local s = call('HMGET', balance, 'balance', 'reserved', 'generation')
    if not s[1] then return nil, subject, '' end
    local held = num(s[2])
    return { quota = quota, window = window, balance = balance, generation = num(s[3]), held = held, granted = math.max(s[1] - held, 0), room = 0 }
  end
  while number < 3 and window.ends <= NOW do -- the clocks can differ: Redis's clock counts
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
    quota = quota, window = window, balance = balance, generation = num(s[3]), held = held, granted = math.max(s[1] - held, 0),
    window_held = window_held, room = math.max(quota.budget - num(s[5]) - window_held, 0), begins = begins,
  }
end

-- Begin a window: it becomes the last one, and the window before the previous one is removed.
local function begin_window(balance, window, spent)
  local last, before = unpack(call('HMGET', balance, 'window_1', 'window_2'))
  if before then
    call('HDEL', balance, 'spent:' .. before)
    if num(call('HGET', balance, 'reserved:' .. before)) == 0 then call('HDEL', balance, 'reserved:' .. before) end
  end
  if last then call('HSET', balance, 'window_2', last) end
  call('HSET', balance, 'window_1', window, 'spent:' .. window, spent)
end

-- Reserve an amount that is available. Return the reservation for the task's record.
local function reserve(funds, amount)
  local balance, window = funds.balance, funds.window
  if funds.begins then begin_window(balance, window.name, '0') end
  local of_window = math.min(amount, funds.room)
  local of_granted = amount - of_window
  if of_window > 0 then call('HSET', balance, window.reserved, whole(funds.window_held + of_window)) end
  if of_granted > 0 then call('HSET', balance, 'reserved', whole(funds.held + of_granted)) end
  return { whose = funds.quota.whose, granted = of_granted, of_window = of_window, window = window.name, budget = funds.quota.budget,
    generation = funds.generation }
end

-- Release a reservation (`by` = -1), or renew it (1).
local function move(user, held, by)
  local balance = keys.balance(payer(user, held.whose))
  local known, generation = unpack(call('HMGET', balance, 'balance', 'generation'))
  if not known or num(generation) ~= held.generation then return end
  if held.granted > 0 then call('HINCRBY', balance, 'reserved', whole(by * held.granted)) end
  local field = 'reserved:' .. held.window
  if held.of_window > 0 and call('HINCRBY', balance, field, whole(by * held.of_window)) == 0
    and call('HEXISTS', balance, 'spent:' .. held.window) == 0 then
    call('HDEL', balance, field)
  end
end

-- Return the reservation for a task of this quota, or the rejection for submit.
local function afford(user, quota, amount)
  local funds, subject, window = funds_of(user, quota)
  if not funds then return nil, { rejected = 'no_balance', subject = subject, window = window } end
  if amount > funds.granted + funds.room then
    return nil, { rejected = 'quota', needed = amount, available = funds.granted + funds.room }
  end
  return funds
end

-- Change the reservation of a task to a total amount. Return the rejection for submit if that is impossible; then nothing has changed.
function credits.reserve_more(task, quota, amount)
  local held = task.reserved
  if held and amount <= held.granted + held.of_window then return nil end
  if held then move(task.user, held, -1) end
  local funds, why = afford(task.user, quota, amount)
  if not funds then
    if held then move(task.user, held, 1) end
    return why
  end
  task.reserved = reserve(funds, amount)
end

hooks.attach('admit', 'quota', function(task, ask)
  local most = credits.most_cost(task)
  if not most and not task.reserve then return nil end
  ask.price = (most or 0) + (task.reserve or 0)
  local why
  ask.funds, why = afford(task.user, task.quota, ask.price)
  return why
end)

hooks.attach('accept', 'quota', function(task, ask)
  if ask.funds then task.reserved = reserve(ask.funds, ask.price) end
end)

-- Return whether the client may have caused the end of a task with output: it was cancelled, its time was over (a worker's own limit has the same
-- code and comes earlier), its text does not match the schema or is too large, or the gateway had no time to check it.
local AS_CALLERS_LIKE = { OUTPUT_TOO_LARGE = true, NOT_CHECKED = true }
local function as_callers_like(task)
  if task.state == 'cancelled' or AS_CALLERS_LIKE[task.code] then return true end
  if task.code == 'JSON_PARSE_FAILED' then return task.schema ~= nil end
  if task.code ~= 'TOTAL_TIMEOUT' then return false end
  local over = earlier(earlier(FOREVER, task.deadline), task.attempt_deadline)
  return task.ended_at >= over
end

-- Return the cost of a task: its price if it completed; its usage until then if it ended after its first output and the client may have caused
-- that end (or its reservation if no usage is reported); otherwise nothing. The cost of a repaired answer is added.
function credits.cost(task)
  local used, cost = task.used or {}, 0
  local stopped = task.first_output_at and as_callers_like(task)
  if task.state == 'completed' or stopped then
    if stopped and task.state ~= 'completed' and not used.input and not used.output and (task.max_cost or task.reserved) then
      cost = task.max_cost or task.reserved.granted + task.reserved.of_window
    elseif task.price then
      cost = cost_of(task.price, used) + (task.cost_before or 0)
    else
      cost = task.cost_before or 0
    end
  end
  return cost
end

hooks.attach('redone', 'price', function(task, used) -- the price per task counts once
  task.cost_before = cost_of(task.price, used) - cost_of(task.price, {})
end)

-- Settle the cost of a task with a reservation. The reservation pays first, its window part before the granted part. A higher cost is taken from
-- the rest of the window's budget, then from granted credits, then it overdraws the window, which ends with it, or, without a window, the
-- granted credits, as a debt. If the balance was lost and loaded again from SQL, the reservation is not released, but the cost is still
-- debited. Return the payment for the usage record: whose, number, reserved and charged of granted credits, reserved and charged of the
-- window, and the window.
function credits.settle(user, held, cost)
  local granted, of_window, window = held.granted, held.of_window, held.window
  if granted + of_window + cost == 0 then return '' end
  local balance, in_window = keys.balance(payer(user, held.whose)), window ~= '-'
  local s = call('HMGET', balance, 'balance', 'reserved', 'generation', 'settled', 'spent:' .. window, 'reserved:' .. window)
  local by_window = math.min(cost, of_window)
  local by_granted, number = cost - by_window, 0
  if s[1] then -- else it is not loaded, and will be loaded from SQL when it is needed
    number = num(s[4]) + 1
    by_granted = math.min(by_granted, granted)
    local known, still_held, window_held, used = in_window and s[5], num(s[2]), num(s[6]), num(s[5])
    local same = num(s[3]) == held.generation
    if same then still_held, window_held = still_held - granted, window_held - of_window end
    local more = cost - by_window - by_granted
    if more > 0 then
      local room = known and math.max(held.budget - used - window_held - by_window, 0) or 0
      by_window, more = by_window + math.min(more, room), more - math.min(more, room)
      local left = in_window and math.max(s[1] - still_held - by_granted, 0) or more
      by_granted, more = by_granted + math.min(more, left), more - math.min(more, left)
      by_window = by_window + more
    end
    local exact = #s[1] <= MAX_DIGITS
    call('HSET', balance, 'settled', whole(number), 'reserved', whole(still_held), 'balance', exact and whole(s[1] - by_granted) or s[1])
    if not exact and by_granted > 0 then call('HINCRBY', balance, 'balance', whole(0 - by_granted)) end
    if known then
      call('HSET', balance, 'reserved:' .. window, whole(window_held), 'spent:' .. window, whole(used + by_window))
    elseif same and of_window > 0 and window_held > 0 then
      call('HSET', balance, 'reserved:' .. window, whole(window_held))
    elseif same and of_window > 0 then
      call('HDEL', balance, 'reserved:' .. window)
    end
  end
  return string.format('%s %d %d %d %d %d %s', held.whose, number, granted, by_granted, of_window, by_window, window)
end

hooks.attach('closed', 'price', function(task) task.cost = credits.cost(task) end)

-- Pay for a task that has ended and holds no slot. The payment goes to SQL with its usage record.
hooks.attach('closed', 'reserved', function(task)
  task.cost = task.cost or credits.cost(task) -- a task without a price of its own can have a reservation for its fallback models
  if task.stage then return end -- the chain pays for all its stages (chains.lua)
  task.paid = credits.settle(task.user, task.reserved, task.cost)
end)

-- Take an amount (text) from the granted credits. Redis calculates, because sums can exceed Lua's exact numbers.
local function take_from(balance, amount)
  if amount == '0' then return end
  call('HINCRBY', balance, 'balance', string.sub(amount, 1, 1) == '-' and string.sub(amount, 2) or '-' .. amount)
end

-- Set a new mark, because a balance was changed from SQL.
local function mark(balance) call('HSET', balance, 'sql_mark', whole(math.max(num(call('HGET', balance, 'sql_mark')) + 1, US))) end

-- Set the sum and the number of grants. A number that is not newer changes nothing, except with `anyhow`.
local function grant(balance, granted, grants, anyhow)
  local known, number = unpack(call('HMGET', balance, 'granted', 'last_grant'))
  if granted == known and grants == num(number) or grants <= num(number) and not anyhow then return end
  take_from(balance, known)
  call('HINCRBY', balance, 'balance', granted)
  call('HSET', balance, 'granted', granted, 'last_grant', whole(grants))
  mark(balance)
end

-- load_balance: store the balance of a key or user from SQL; if it is loaded already, only newer grants and a missing window
-- args      subject; granted (text) and grants: sum of granted micro-credits, and number of the last grant; spent (text): costs that tasks took of
--           these; number: the highest payment number in SQL; window of its budget, and window_spent (text)
-- returns   {loaded}: true if it was not loaded before
script('load_balance', nil, function(ask)
  local balance = keys.balance(ask.subject)
  local known = call('HEXISTS', balance, 'balance') == 1
  if not known then
    call('DEL', balance)
    local generation = call('HINCRBY', keys.pool(), 'generation', '1')
    call('HSET', balance, 'balance', ask.granted, 'granted', ask.granted, 'last_grant', whole(ask.grants), 'settled', whole(ask.number + 1),
      'generation', whole(generation))
    mark(balance)
    take_from(balance, ask.spent)
    call('ZADD', keys.balances(), NOW_TEXT, ask.subject)
  else
    grant(balance, ask.granted, ask.grants)
  end
  if ask.window and call('HEXISTS', balance, 'spent:' .. ask.window) == 0 then begin_window(balance, ask.window, ask.window_spent) end
  return { loaded = not known }
end)

-- list_due_balances: return balances that are due for a comparison with SQL
-- args      most: how many; pause_ms until they are due again; all: all are due now
-- returns   {newest: id of the newest entry of the outbox, due: {subject, ms without changes} of each}, and of each its fields and values, packed
script('list_due_balances', 'allow-oom', function(ask)
  local line, newest = keys.balances(), call('XREVRANGE', keys.outbox(), '+', '-', 'COUNT', '1')[1]
  if ask.all then call('ZUNIONSTORE', line, '1', line, 'WEIGHTS', '0') end
  local found, packed = {}, {}
  for _, subject in ipairs(call('ZRANGEBYSCORE', line, '-inf', NOW_TEXT, 'LIMIT', '0', whole(ask.most))) do
    local balance = keys.balance(subject)
    local flat, s, held = call('HGETALL', balance), {}, 0
    for i = 1, #flat, 2 do
      s[flat[i]] = flat[i + 1]
      if string.sub(flat[i], 1, 8) == 'reserved' then held = held + flat[i + 1] end
    end
    if s.balance then
      if held > 0 or s.reconciled ~= s.settled or not s.idle_since then
        s.idle_since = NOW_TEXT
        call('HSET', balance, 'reconciled', s.settled, 'idle_since', NOW_TEXT)
      end
      call('ZADD', line, whole(NOW + ask.pause_ms), subject)
      found[#found + 1] = { subject, NOW - s.idle_since }
      packed[#found] = cmsgpack.pack(s)
    else
      call('ZREM', line, subject)
    end
  end
  return { newest = newest and newest[1] or '', due = found }, unpack(packed)
end)

-- adjust_balance: correct a balance that differs from SQL, or remove it
-- args      subject; mark: its field `sql_mark` at the comparison; if it has changed since, nothing is done; forget: its field `settled` at the
--           comparison: the balance is removed if it is the same and nothing is reserved; otherwise number: the highest payment number in SQL;
--           granted (text) and grants; spent (text): amount to add to the costs of granted credits; windows: window -> amount to add
-- returns   {done}
script('adjust_balance', 'allow-oom', function(ask)
  local balance = keys.balance(ask.subject)
  local its_mark, number = unpack(call('HMGET', balance, 'sql_mark', 'settled'))
  if its_mark ~= ask.mark then return { done = false } end
  if ask.forget then
    local flat = call('HGETALL', balance)
    for i = 1, #flat, 2 do
      if string.sub(flat[i], 1, 8) == 'reserved' and num(flat[i + 1]) > 0 then return { done = false } end
    end
    if number ~= ask.forget then return { done = false } end
    call('DEL', balance)
    call('ZREM', keys.balances(), ask.subject)
    return { done = true }
  end
  grant(balance, ask.granted, ask.grants, true)
  take_from(balance, ask.spent)
  for window, more in pairs(ask.windows) do
    if call('HEXISTS', balance, 'spent:' .. window) == 1 then call('HINCRBY', balance, 'spent:' .. window, more) end
  end
  if num(number) < ask.number then -- numbers were lost: continue from SQL's
    call('HSET', balance, 'settled', whole(ask.number))
    call('ZADD', keys.balances(), NOW_TEXT, ask.subject)
  end
  mark(balance)
  return { done = true }
end)

return credits
