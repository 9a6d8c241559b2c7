-- What keys and users with a quota pay for their tasks: from credits that were granted to them, and from a budget that is renewed each day
-- or month. Amounts are whole micro-credits. A subject is one of limits.lua; what it has lies in its hash (keys.py, BALANCE), as loaded
-- from SQL: an unknown balance is loaded first, and no task is accepted by guess.
--
-- A task is held the price of the most that it may use, as far as that is specified or learned, from the budget's window first, and its
-- record says what from where (`reserved`): the subject `whose`, from what was `granted`, from the `window`, that window and its budget, and
-- the `generation` of the balance: one that was lost and loaded again has another. Its one end gives that back and takes what it costs
-- instead, numbers that for the subject, and goes to SQL with the task's usage record: so it happens once, and what lies in the hash is
-- the sum of what SQL has and of what is on its way there.
--
-- A window is named by its kind, d or m, and its end (ms). The hash knows the last two, and of older ones what is held of them.
local credits = {}
local MAX_TOKENS = 4194304 -- of one task, each way
local UNKNOWN_OUTPUT = 4096 -- of a model that has not answered yet
local MAX_REPAIRED, REPAIR_WORDS = 16384, 512 -- tokens of an answer that its model gets back, and of the error in it
local MAX_DIGITS = 15 -- of a balance with which numbers here are exact, whatever a task takes of it

-- Prices of a million tokens of input, cached ones, output and reasoning, each as millions and what is over, so that no product is beyond
-- what numbers here hold exactly; and the price of a task.
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

-- Return what these tokens cost; rounded up, once. What is not known is none; cached ones are some of the input, reasoning ones some of the
-- output.
local function cost_of(price, used)
  local p = parse_price(price)
  local input, output = within(used.input, MAX_TOKENS), within(used.output, MAX_TOKENS)
  local cached, reasoning = within(used.cached, input), within(used.reasoning, output)
  input, output = input - cached, output - reasoning
  return p.request + input * p[1] + cached * p[3] + output * p[5] + reasoning * p[7]
    + math.ceil((input * p[2] + cached * p[4] + output * p[6] + reasoning * p[8]) / 1000000)
end

-- Return what a task may cost by a price: its input, and all the output that it asks for; where it does not say how much, as much as the longest
-- answer of its model recently, for each that it asks for. An answer that may be repaired may be written twice, and the second time the
-- first is part of the input, as far as it is sent.
local function most_cost(task, longest, price)
  local p, output = parse_price(price), task.max_output or 0
  if output == 0 then output = (longest > 0 and longest or UNKNOWN_OUTPUT) * math.max(task.answers or 1, 1) end
  local input = task.max_input or task.input_tokens or 0
  if task.repair then input, output = 2 * input + math.min(output, MAX_REPAIRED) + REPAIR_WORDS, 2 * output end
  return cost_of(price, { input = input, output = output, cached = p.cached_is_dear and input or 0, reasoning = p.thought_is_dear and output or 0 })
end

-- Return the most that a task may cost, on its own model and on its fallback models; nil: it costs nothing.
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

-- A quota as submit is given it: k or u, whose it is; and where there is a budget, that, its kind, and the ends of the window before this
-- one, of this one and of the next, as the gateway's clock says. `windows`: of each when it ends, its name, and the fields of what was spent
-- and is held of it. Without a budget there is one window, which is empty.
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

-- Return what a user's task can be paid from: {quota, window, the `balance`'s key, its generation, what is `held`, what is left of what was
-- `granted`, and of its budget as `room`, and whether the window `begins`}; nil: SQL must be asked, for this subject and window ('': none).
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
    quota = quota, window = window, balance = balance, generation = num(s[3]), held = held, granted = math.max(s[1] - held, 0),
    window_held = window_held, room = math.max(quota.budget - num(s[5]) - window_held, 0), begins = begins,
  }
end

-- A window is the last one used: the one before the last before it is forgotten.
local function begin_window(balance, window, spent)
  local last, before = unpack(call('HMGET', balance, 'window_1', 'window_2'))
  if before then
    call('HDEL', balance, 'spent:' .. before)
    if num(call('HGET', balance, 'reserved:' .. before)) == 0 then call('HDEL', balance, 'reserved:' .. before) end
  end
  if last then call('HSET', balance, 'window_2', last) end
  call('HSET', balance, 'window_1', window, 'spent:' .. window, spent)
end

-- Hold so much, which is there. Return what the task's record says of it.
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

-- Let what is held be held no more (`by` -1), or again (1).
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

-- Return what would be held for a user's task of this quota, or why not, as submit rejects it.
local function afford(user, quota, amount)
  local funds, subject, window = funds_of(user, quota)
  if not funds then return nil, { rejected = 'no_balance', subject = subject, window = window } end
  if amount > funds.granted + funds.room then
    return nil, { rejected = 'quota', needed = amount, available = funds.granted + funds.room }
  end
  return funds
end

-- Hold so much in all for a task that holds something. Return why not, as submit rejects it; nothing has changed then.
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

-- A caller has the output of a task that ended after its first output as its caller likes: it was cancelled, its time was over (a worker's
-- own limit has the same code, and comes before), its text does not match the schema or is too large, or the gateway had no time to check it.
local AS_CALLERS_LIKE = { OUTPUT_TOO_LARGE = true, NOT_CHECKED = true }
local function as_callers_like(task)
  if task.state == 'cancelled' or AS_CALLERS_LIKE[task.code] then return true end
  if task.code == 'JSON_PARSE_FAILED' then return task.schema ~= nil end
  if task.code ~= 'TOTAL_TIMEOUT' then return false end
  local over = earlier(earlier(FOREVER, task.deadline), task.attempt_deadline)
  return task.ended_at >= over
end

-- Return what a task costs: its price, if it completed; what was used until then, if it ended after its first output and its caller may have
-- caused that end (what it was held, if then no usage is reported); else nothing. And what an answer cost that was repaired.
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

hooks.attach('redone', 'price', function(task, used) -- a task's own price once
  task.cost_before = cost_of(task.price, used) - cost_of(task.price, {})
end)

-- A task that was held something costs so much. What was held pays first, and of that the window; for more than was held: what is left of
-- the window's budget, of what is granted, and then the window, whose overrun ends with it; or where there is none, what is granted, as a
-- debt. What a balance reserved before it was lost and loaded again from SQL is not released: the cost is taken all the same. Return
-- what the usage record says of it: whose, number, held and charged of what is granted, held and charged of the window, and that.
function credits.settle(user, held, cost)
  local granted, of_window, window = held.granted, held.of_window, held.window
  if granted + of_window + cost == 0 then return '' end
  local balance, in_window = keys.balance(payer(user, held.whose)), window ~= '-'
  local s = call('HMGET', balance, 'balance', 'reserved', 'generation', 'settled', 'spent:' .. window, 'reserved:' .. window)
  local by_window = math.min(cost, of_window)
  local by_granted, number = cost - by_window, 0
  if s[1] then -- else it is not known any more: it is loaded from SQL when it is needed
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

-- A task that has ended and holds no slot is paid for: what its record says of that goes to SQL with its usage.
hooks.attach('closed', 'reserved', function(task)
  task.cost = task.cost or credits.cost(task) -- (one that another model may have answered is held for that, though its own costs nothing)
  if task.stage then return end -- the chain pays for all its stages (chains.lua)
  task.paid = credits.settle(task.user, task.reserved, task.cost)
end)

-- Take so much, a text, from what was granted: sums may be beyond what numbers here hold exactly.
local function take_from(balance, amount)
  if amount == '0' then return end
  call('HINCRBY', balance, 'balance', string.sub(amount, 1, 1) == '-' and string.sub(amount, 2) or '-' .. amount)
end

-- Set a mark of what SQL has said of a balance: another one each time.
local function mark(balance) call('HSET', balance, 'sql_mark', whole(math.max(num(call('HGET', balance, 'sql_mark')) + 1, US))) end

-- Set what was granted in all, and the number of grants; an older number changes nothing, except with `anyhow`.
local function grant(balance, granted, grants, anyhow)
  local known, number = unpack(call('HMGET', balance, 'granted', 'last_grant'))
  if granted == known and grants == num(number) or grants <= num(number) and not anyhow then return end
  take_from(balance, known)
  call('HINCRBY', balance, 'balance', granted)
  call('HSET', balance, 'granted', granted, 'last_grant', whole(grants))
  mark(balance)
end

-- load_balance: what SQL knows of what a key or user can pay with; of one that is known here grants that are newer, and a window that is not
-- args      subject; granted (text) and grants: micro-credits that were granted, and number of the last grant; spent (text): what its tasks have
--           cost of these; number: the highest that SQL has of a task; window of its budget, and window_spent (text)
-- returns   {loaded}: it was not known
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

-- list_due_balances: whose balances are to be compared with SQL now, and how they stand
-- args      most: how many; pause_ms until they are due again; all: all are due now
-- returns   {newest: id of the newest entry of the outbox, due: {subject, ms since when nothing has happened} of each}, and of each its fields and
--           values, packed
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

-- adjust_balance: correct a balance that differs from SQL, or forget it
-- args      subject; mark: its field `sql_mark` when it was compared: with another one it was corrected meanwhile; forget: its field `settled` when it
--           was compared: it is forgotten, if that is so still and nothing is held; else number: the highest of a task that SQL has; granted
--           (text) and grants, spent (text): what is to be added to what its tasks have cost of these; windows of its budget -> the same
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
  if num(number) < ask.number then -- numbers were lost: from here on it can be compared
    call('HSET', balance, 'settled', whole(ask.number))
    call('ZADD', keys.balances(), NOW_TEXT, ask.subject)
  end
  mark(balance)
  return { done = true }
end)

return credits
