-- A finished answer that does not match its schema may be asked for again, once a task, while no reader has seen any of it: the task
-- goes back with a payload that names the error to the model. Its field `repair` says 1 while that may be, and from then on 2, what the
-- first answer used (input, output, cached, reasoning, 1: estimated), and what that cost.
--
-- The first answer is charged as it goes back: to the shares, to the pace of its model, to the limits of tokens. What is charged
-- behind it is the next answer's alone. Usage record and ledger have the sum.
local repairs = {}

-- What the last attempt of a task used: what its worker reports at the end; else what was recorded before (`usage`).
function repairs.used_at_last(used, us)
  used = used or { '-1', '-1', '' }
  if not us or num(used[1]) >= 0 or num(used[2]) >= 0 then return used end
  return { string.match(us, '^(%S*) (%S*) (.*)$') }
end

-- Let what an attempt used be what a task of this field has used; the ends of attempts have texts, -1: unknown.
-- Returns that, and what the first one cost.
function repairs.used_in_all(rp, used)
  local input, output, cached, reasoning, estimated, cost = string.match(rp or '', '^2 (%d+) (%d+) (%S+) (%S+) (%d) (%d+)$')
  if not input then return used, 0 end
  local function sum(a, b)
    a, b = num(a), num(b)
    if a < 0 or b < 0 then return math.max(a, b) end
    return a + b
  end
  local more_cached, more_reasoning, guessed = string.match(used and used[3] or '', '^(%S+) (%S+) (%d)$')
  return {
    whole(sum(input, used and used[1] ~= '' and used[1] or '-1')), whole(sum(output, used and used[2] ~= '' and used[2] or '-1')),
    string.format('%d %d %d', sum(cached, more_cached or '-1'), sum(reasoning, more_reasoning or '-1'),
      math.max(num(estimated), num(guessed))),
  }, cost + 0
end

-- Put another payload in the place of the one that a task has, which counts as this one did. The archive keeps the request as it came.
function repairs.replace_payload(id, t, payload)
  local before, after = num(t.payload_bytes), #payload
  if t.archive and string.sub(t.archive, -1) == 'r' then call('RENAMENX', keys.payload(id), keys.request(id)) end
  call('SET', keys.payload(id), payload)
  chains.count_bytes(t.user, before, after)
  t.payload_bytes, t.input_tokens = whole(after), whole(math.max(num(t.input_tokens) + math.floor((after - before) / 4), 0))
  call('HSET', keys.task(id), 'payload_bytes', t.payload_bytes, 'input_tokens', t.input_tokens)
end

-- Note that the answer of an attempt is to be repaired. `used`: as `record_usage` wants it.
function repairs.note(id, t, used)
  local cached, reasoning, estimated = string.match(used[3], '^(%S+) (%S+) (%d)$')
  local cost = 0
  if t.price then cost = cost_of(t.price, used[1], used[2], cached, reasoning) - cost_of(t.price, 0, 0) end -- a task's own price once
  t.repair = string.format('2 %d %d %d %d %s %d', math.max(num(used[1]), 0), math.max(num(used[2]), 0), num(cached or '-1'),
    num(reasoning or '-1'), estimated or '0', cost)
  call('HSET', keys.task(id), 'repair', t.repair)
  call('HDEL', keys.task(id), 'usage') -- what was counted of the first
  t.usage = nil
end
