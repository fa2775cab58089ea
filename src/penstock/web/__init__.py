"""HTTP server of job queues, worker health and object-storage brokers: uvicorn with shared token checks, limits and
time-outs. The routes belong to the packages that serve them."""
