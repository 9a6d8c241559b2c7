-- What is known of tasks that failed or were cancelled, for operators: a day, the last 10,000 of them, and nothing of their content.

local REMEMBERED = { 'st', 'q', 'm', 'an', 'u', 'k', 'ty', 'en', 'pr', 'ei', 'mo', 'wd', 'dl', 'wt', 'sf', 'rq', 'pb', 'at',
  'wk', 'ga', 'xd', 'rf', 'tr', 'fo', 'sq', 'hi', 'ed', 'co', 'rt', 'mv', 'rp', 'sg', 'pa' }

-- As much of a failure's sentence as operators may see: sentences.py says what that is.
local function for_operators(code, text)
  if OWN_SENTENCE[code] then return string.sub(text, 1, MAX_CHARS) end
  local quoted = string.find(' ' .. text, "[^%w_]'") or #text + 1
  quoted = math.min(quoted, string.find(text .. ' ', '[:=][^/]') or quoted)
  for _, quote in ipairs(QUOTES) do
    quoted = math.min(quoted, string.find(text, quote, 1, true) or quoted)
  end
  if quoted > math.min(#text, UNQUOTED_CHARS + 1) then
    return string.match(string.sub(text, 1, UNQUOTED_CHARS), '^(.-)[ ,]*$')
  end
  local at = quoted
  while true do
    local word, behind = string.match(text, '^[ :;,.()/_-]*(%w+)()', at)
    if not word or behind > MAX_CHARS + 1 or not WORDS_OF_ERRORS[string.lower(word)] then break end
    at = behind
  end
  if at > quoted then at = string.match(text, '^[).]*()', at) end
  return string.match(string.sub(text, 1, at - 1), '^(.-)[ ,]*$')
end

-- The sentence of an `error` event, as operators may see it.
local function sentence_in(data, code)
  local fine, event = pcall(cjson.decode, data)
  local text = fine and type(event) == 'table' and event.error
  return type(text) == 'string' and for_operators(code, text) or ''
end

-- Keep what is known of a task that has just ended so, with its sentence if it has one; the oldest of too many makes room.
local function remember(id, sentence)
  local most, ms = 10000, 86400000
  local found, kept = call('HMGET', keys.task(id), unpack(REMEMBERED)), {}
  for i, field in ipairs(REMEMBERED) do
    if found[i] then
      kept[#kept + 1] = field
      kept[#kept + 1] = found[i]
    end
  end
  call('HSET', keys.failure(id), 'er', sentence or '', 'tl', whole(ms), unpack(kept))
  call('PEXPIRE', keys.failure(id), whole(ms))
  call('ZADD', keys.failures(), NOW_TEXT, id)
  if call('ZCARD', keys.failures()) > most then
    call('UNLINK', keys.failure(call('ZPOPMIN', keys.failures())[1]))
  end
end
