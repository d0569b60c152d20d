"""SQL of erasures: their requests, the way into every store, holds, and what is stored of one person."""
