SELECT partner, paused FROM partner_control
