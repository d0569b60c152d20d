-- Erasure requests, their receipts, and endpoints that may not come back on their own.
SELECT 1;
