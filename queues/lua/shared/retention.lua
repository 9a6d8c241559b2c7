-- What ended tasks leave behind, records and logs, until their time is over: how many bytes, and a budget for it.
--
-- An ending only notes its task in a list, in the order in which they end. The sweep takes these notes over into two lines, by
-- when they expire and by when they ended, and adds up their bytes: those that expired leave the count; beyond the budget those
-- that ended first are dropped early.

-- What is kept of an ended task goes in `keep` ms, if it would not go before; `t`: its `ended_at` and `stored_bytes`.
local function shorten(id, t, keep)
  keep = math.max(keep, 1000)
  call('PEXPIRE', keys.task(id), whole(keep), 'LT')
  call('PEXPIRE', keys.log(id), whole(keep), 'LT')
  call('PEXPIRE', keys.chain(id), whole(keep), 'LT')
  call('RPUSH', keys.endings(), string.format('%s %s %s %d', id, t.stored_bytes, t.ended_at, NOW + keep))
end

-- Members of both lines: task and bytes.
local function read_note(entry) return string.match(entry, '^(%S+) (%d+)') end

-- Take over at most `most` notes, forget as many that expired, drop as many beyond the budget (bytes). Returns how many were
-- dropped, and whether there is more to do.
local function keep_within(budget, most)
  local changed, dropped, noted = 0, 0, call('LPOP', keys.endings(), most) or {}
  for _, note in ipairs(noted) do
    local id, bytes, ended, expires = string.match(note, '^(%S+) (%d+) (%d+) (%d+)$')
    local entry = id .. ' ' .. bytes
    local new = call('ZADD', keys.ended(), ended, entry) == 1
    call('ZADD', keys.expiries(), 'LT', expires, entry)
    if new then changed = changed + tonumber(bytes) end -- else it goes earlier than was noted before
  end
  local over = call('ZRANGEBYSCORE', keys.expiries(), '-inf', NOW_TEXT, 'LIMIT', '0', whole(most))
  local function forget(entries)
    for _, entry in ipairs(entries) do
      local _, bytes = read_note(entry)
      changed = changed - tonumber(bytes)
    end
    if entries[1] then
      call('ZREM', keys.expiries(), unpack(entries))
      call('ZREM', keys.ended(), unpack(entries))
    end
  end
  forget(over)
  local kept = num(call('HGET', keys.pool(), 'kept')) + changed
  if kept > budget then
    local oldest, excess = {}, kept - budget
    for _, entry in ipairs(call('ZRANGE', keys.ended(), '0', whole(most - 1))) do
      if excess <= 0 then break end
      local id, bytes = read_note(entry)
      call('UNLINK', keys.task(id), keys.log(id), keys.request(id), keys.chain(id))
      oldest[#oldest + 1], excess = entry, excess - tonumber(bytes)
    end
    forget(oldest)
    dropped = #oldest
    if dropped > 0 then call('HINCRBY', keys.pool(), 'dropped', whole(dropped)) end
    kept = excess + budget
  end
  if changed ~= 0 then call('HINCRBY', keys.pool(), 'kept', whole(changed)) end
  return dropped, #noted == most or #over == most or (kept > budget and dropped == most)
end
