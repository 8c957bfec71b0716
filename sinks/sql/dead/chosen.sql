-- What an action is about. `arrived`: an attempt may have reached the partner, and nobody has said that it did not.
CREATE TEMPORARY TABLE chosen (
    event        bigint NOT NULL,
    partner      text NOT NULL,
    source       text NOT NULL,
    live         boolean NOT NULL,
    status       delivery_status NOT NULL,
    cause        text,
    currency     text,
    amount_minor bigint,
    arrived      boolean NOT NULL DEFAULT false,
    left_out     text,                    -- why the action does not touch it
    PRIMARY KEY (event, partner)
) ON COMMIT DROP
