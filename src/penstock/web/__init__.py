"""The HTTP server of job queues, worker health and object-storage brokers: uvicorn, with one token check and one set of
limits and time-outs. The routes belong to the packages that serve them."""
