-- confirm_archived: the archive has these tasks, or will never have them: what is kept of them here goes when that of others does
-- KEYS[1]  prefix of the pool
-- ARGV[1]  group of those who carry
-- ARGV[2…] id of the entry, task, …
-- returns  how many entries were there
script('confirm_archived', 'allow-oom', function(ARGV)
  local archive, gone = keys.archive(), 0
  for i = 2, #ARGV, 2 do
    local entry, id = ARGV[i], ARGV[i + 1]
    call('XACK', archive, ARGV[1], entry)
    gone = gone + call('XDEL', archive, entry)
    local ed, tl, ar, by = unpack(call('HMGET', keys.task(id), 'ended_at', 'ttl', 'archive', 'stored_bytes'))
    if ed and ar and by then
      call('HDEL', keys.task(id), 'archive')
      call('UNLINK', keys.request(id))
      shorten(id, { ended_at = ed, stored_bytes = by }, num(ed) + num(tl) - NOW)
    end
  end
  return gone
end)
