-- What sweeps over tables of yours, their archives and partitions need.
SELECT 1;
