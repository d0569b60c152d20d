-- What rolling keys needs.
SELECT 1;
