"""What runs under Locust: the only place that imports Locust and gevent, which patch the whole process."""
