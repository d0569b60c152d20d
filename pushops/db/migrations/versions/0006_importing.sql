-- Where imported subscriptions wait before they are stored.
SELECT 1;
