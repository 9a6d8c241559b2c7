-- What is known of tasks that failed or were cancelled, for operators: a day, the last 10,000 of them, and nothing of their content.

local MOST_REMEMBERED, REMEMBERED_MS = 10000, 86400000
local REMEMBERED = { 'st', 'q', 'm', 'an', 'u', 'k', 'ty', 'en', 'pr', 'ei', 'mo', 'wd', 'dl', 'tl', 'wt', 'sf', 'rq', 'pb', 'at',
  'wk', 'ga', 'xd', 'rf', 'tr', 'fo', 'sq', 'hi', 'ed', 'co' }
-- Failures whose sentence may quote the request: what stands before the first quotation mark, bracket or colon is kept.
local QUOTING = { BAD_REQUEST = true, CONTENT_FILTERED = true, CONTEXT_LENGTH = true, WORKER_ERROR = true }
local QUOTES = { '"', '`', '(', '[', '{', '<', ': ', " '", '\194\171', '\226\128\152', '\226\128\156' }

-- The sentence of an `error` event, short.
local function sentence_in(data, code)
  local fine, event = pcall(cjson.decode, data)
  local text = fine and type(event) == 'table' and event.error
  if type(text) ~= 'string' then return '' end
  if not QUOTING[code] then return string.sub(text, 1, 300) end
  local last = 80
  for _, quote in ipairs(QUOTES) do
    local at = string.find(text, quote, 1, true)
    if at then last = math.min(last, at - 1) end
  end
  return string.sub(text, 1, last)
end

-- Keep what is known of a task that has just ended so, with its sentence if it has one; the oldest of too many makes room.
local function remember(id, sentence)
  local found, kept = call('HMGET', keys.task(id), unpack(REMEMBERED)), {}
  for i, field in ipairs(REMEMBERED) do
    if found[i] then
      kept[#kept + 1] = field
      kept[#kept + 1] = found[i]
    end
  end
  call('HSET', keys.failure(id), 'er', sentence or '', unpack(kept))
  call('PEXPIRE', keys.failure(id), whole(REMEMBERED_MS))
  call('ZADD', keys.failures(), NOW_TEXT, id)
  if call('ZCARD', keys.failures()) > MOST_REMEMBERED then
    call('UNLINK', keys.failure(call('ZPOPMIN', keys.failures())[1]))
  end
end
