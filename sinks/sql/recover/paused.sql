SELECT partner FROM partner_control WHERE paused
