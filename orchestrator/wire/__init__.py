"""HTTP bodies of `/api/v1`, shared by the service and its clients.

Answers may gain fields; a client ignores unknown ones. Requests refuse unknown fields. Reports ignore them, because
agents of other versions send them.
"""
