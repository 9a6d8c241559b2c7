-- record_action: write an action into the audit log that changes no setting
-- KEYS[1]  prefix of the pool
-- ARGV[1]  who did it
-- ARGV[2]  from which address
-- ARGV[3]  8 characters that distinguish the entry from others of this instant
-- ARGV[4]  what was done
-- ARGV[5]  to what
-- ARGV[6]  JSON of what was before
-- ARGV[7]  JSON of what is now
-- returns  id of the entry
script('record_action', nil, function(ARGV)
  return record_act(US_TEXT .. '-' .. ARGV[3], ARGV[1], ARGV[2], ARGV[4], ARGV[5], ARGV[6], ARGV[7])
end)
